//! A folder in which only this user can write.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, open, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use crate::bootstrap::peer;
use crate::fault::Fault;

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    /// It does not exist, or the system returns an error.
    #[error(transparent)]
    System(#[from] io::Error),
    /// Other users can write there, or decide where its name leads.
    #[error("{0}; name a folder that does not exist yet, and rank 0 makes it, or one that only you can write to")]
    Open(String),
    /// It would have to be made in a folder that does not exist.
    #[error("{} does not exist; correct the path, or make that folder: rank 0 makes the last one only", .0.display())]
    NoParent(PathBuf),
}

/// A folder that belongs to this user and that no other user can write to. The handle stays valid if the name changes.
/// A folder that this process made is removed at the end if it is empty; a folder that existed stays.
#[derive(Debug)]
pub(super) struct Folder {
    directory: OwnedFd,
    _made: Option<Made>,
}

/// The path of a folder that this process made.
#[derive(Debug)]
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        // Other files in the folder keep it.
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl Folder {
    /// Opens the folder, and makes it for this user alone if it does not exist. The folder above it must exist, so that
    /// a mistyped path does not become a tree that remains.
    pub(super) fn make(path: &Path) -> Result<Self, Unusable> {
        let made = match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => Some(Made(path.to_owned())),
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => None,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                return Err(path.parent().map_or(cause.into(), |parent| Unusable::NoParent(parent.to_owned())));
            }
            Err(cause) => return Err(cause.into()),
        };
        Ok(Folder { _made: made, ..Self::open(path)? })
    }

    pub(super) fn open(path: &Path) -> Result<Self, Unusable> {
        // Drop a trailing slash, because a link in front of it would be followed.
        let path: PathBuf = path.components().collect();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = open(&path, flags, Mode::empty()).map_err(io::Error::from)?;
        let stat = fstat(&directory).map_err(io::Error::from)?;
        check(&stat).map_err(Unusable::Open)?;
        Ok(Folder { directory, _made: None })
    }

    /// Writes a file atomically, which only this user can read.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if Fault::WriteInPlace.is_chosen() {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
            return File::from(openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)?).write_all(bytes);
        }
        let draft = format!("{name}.draft-{}", std::process::id());
        // An earlier process with the same id may have left one.
        self.remove(&draft)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, &draft, flags, Mode::RUSR | Mode::WUSR)?;
        let written = File::from(file).write_all(bytes);
        let renamed =
            written.and_then(|()| renameat(&self.directory, &draft, &self.directory, name).map_err(io::Error::from));
        renamed.inspect_err(|_| _ = self.remove(&draft))
    }

    pub(super) fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        // A pipe is refused without waiting for it.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.directory, name, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other(format!("{name} in that folder is no file")));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(cause) => Err(cause.into()),
        }
    }
}

/// Checks that no other user can write files there, or replace them.
fn check(stat: &Stat) -> Result<(), String> {
    let (mode, own) = (Mode::from_raw_mode(stat.st_mode), rustix::process::geteuid().as_raw());
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {}
        FileType::Symlink => return Err("it is a symbolic link, which may lead elsewhere tomorrow".to_owned()),
        _ => return Err("it is no folder".to_owned()),
    }
    if stat.st_uid != own {
        return Err(format!("it belongs to user {}, where user {own} was expected", stat.st_uid));
    }
    if peer::stands_for_others(own) {
        return Err(format!(
            "it may belong to any user that this user namespace has no number for: user {own} stands for all of them \
             (user_namespaces(7)); start the ranks as another user"
        ));
    }
    if mode.intersects(Mode::WGRP | Mode::WOTH) {
        return Err(format!("others can write to it (its mode is {:o}; chmod go-w would do)", mode.as_raw_mode()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;
    use crate::skipped::{Need, skipped};

    /// A path at which nothing exists.
    fn nothing_at(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("earlybird-folder-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn permissions(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn only_this_user_can_look_into_what_it_makes() {
        let path = nothing_at("made");
        let folder = Folder::make(&path).unwrap();
        folder.put("word", b"secret").unwrap();
        assert_eq!((permissions(&path), permissions(&path.join("word"))), (0o700, 0o600));
        assert_eq!(folder.read("word").unwrap(), b"secret");
        folder.put("word", b"another").unwrap();
        assert_eq!(Folder::make(&path).unwrap().read("word").unwrap(), b"another");
        folder.remove("word").unwrap();
        folder.remove("word").unwrap();
        assert!(!folder.has("word"));
        drop(folder);
        assert!(!path.exists(), "what was made is left behind");
    }

    #[test]
    fn a_path_with_a_missing_folder_is_refused_and_nothing_is_made() {
        let above = nothing_at("mistyped");
        let problem = Folder::make(&above.join("deeper").join("store")).unwrap_err().to_string();
        assert!(problem.starts_with(&format!("{} does not exist", above.join("deeper").display())), "{problem}");
        assert!(!above.exists(), "a mistyped path has become a folder");
    }

    #[test]
    fn links_inside_are_not_followed() {
        let (path, precious) = (nothing_at("links"), nothing_at("precious"));
        fs::write(&precious, "precious").unwrap();
        let folder = Folder::make(&path).unwrap();
        symlink(&precious, path.join("word")).unwrap();
        symlink(&precious, path.join(format!("word.draft-{}", std::process::id()))).unwrap();
        assert!(folder.read("word").is_err(), "a link was followed");
        folder.put("word", b"written").unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        assert_eq!(folder.read("word").unwrap(), b"written");
        fs::remove_dir_all(path).unwrap();
        fs::remove_file(precious).unwrap();
    }

    #[test]
    fn what_others_can_change_is_refused() {
        let refused = |path: &Path, named: &str| {
            for opened in [Folder::open(path), Folder::make(path)] {
                let problem = opened.unwrap_err().to_string();
                assert!(problem.contains(named) && problem.contains("rank 0 makes it"), "{problem}");
            }
        };
        let (path, link) = (nothing_at("shared"), nothing_at("link"));
        fs::create_dir(&path).unwrap();
        symlink(&path, &link).unwrap();
        refused(&link, "a symbolic link");
        refused(&link.join(""), "a symbolic link");
        fs::remove_file(&link).unwrap();
        fs::write(&link, "").unwrap();
        refused(&link, "no folder");
        fs::remove_file(&link).unwrap();
        for mode in [0o720, 0o702, 0o1777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            refused(&path, &format!("its mode is {mode:o}; chmod go-w"));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Folder::open(&path).unwrap();
        match chown(&path, Some(65534), None) {
            Ok(()) => refused(&path, "it belongs to user 65534, where user "),
            Err(cause) => {
                skipped(Need::Root, format_args!("no folder can be given to another user here: {cause}"));
            }
        }
        fs::remove_dir(&path).unwrap();
    }
}
