//! A temporary folder of a test.

use std::path::{Path, PathBuf};

use super::unique;

/// A folder, which is removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        let folder = std::env::temp_dir().join(unique());
        std::fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    pub fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// The path of a file in it, as text.
    pub fn file(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
