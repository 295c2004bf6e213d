//! What the processes of a test tell each other outside of the library: files in a folder.

use std::path::PathBuf;

use super::{role, unique, until};

/// A folder of marks.
pub struct Marks {
    folder: PathBuf,
    /// This process made it.
    own: bool,
}

impl Marks {
    /// A new folder, which goes when this is dropped.
    pub fn make() -> Marks {
        let folder = std::env::temp_dir().join(unique());
        std::fs::create_dir(&folder).unwrap();
        Marks { folder, own: true }
    }

    /// The folder with which the role of this process ends.
    pub fn of_role() -> Marks {
        Marks::at(role().unwrap().rsplit(' ').next().unwrap())
    }

    /// A folder that another process has made.
    pub fn at(folder: &str) -> Marks {
        Marks { folder: folder.into(), own: false }
    }

    pub fn folder(&self) -> std::path::Display<'_> {
        self.folder.display()
    }

    pub fn set(&self, name: &str) {
        std::fs::write(self.folder.join(name), "").unwrap();
    }

    pub fn has(&self, name: &str) -> bool {
        self.folder.join(name).exists()
    }

    /// Waits until somebody has set it.
    pub fn wait(&self, name: &str) {
        until(name, || self.has(name));
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        if self.own {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}
