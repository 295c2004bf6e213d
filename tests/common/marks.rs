//! Files in a folder by which the processes of a test signal each other outside of the library.

use std::path::PathBuf;

use super::{role, unique, until};

/// A folder of marks.
pub struct Marks {
    folder: PathBuf,
    /// This process created it.
    own: bool,
}

impl Marks {
    /// A new folder, removed when this is dropped.
    pub fn make() -> Marks {
        let folder = std::env::temp_dir().join(unique());
        std::fs::create_dir(&folder).unwrap();
        Marks { folder, own: true }
    }

    /// The folder at the end of this process's role.
    pub fn of_role() -> Marks {
        Marks::at(role().unwrap().rsplit(' ').next().unwrap())
    }

    /// A folder that another process has created.
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

    /// Waits until another process has set it.
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
