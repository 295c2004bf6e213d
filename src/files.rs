//! Files at names that others may have taken first: by a link, a pipe, or a file of their own.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};

/// Makes a file for this user alone (its mode is 0600). One of this user's that has the name is replaced by it.
///
/// # Errors
/// What has the name is a link, no file, or another user's; what the system says.
pub fn create(path: &Path) -> io::Result<File> {
    let make = || {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        open(path, flags, Mode::RUSR | Mode::WUSR).map(File::from).map_err(io::Error::from)
    };
    let made = make();
    if !made.as_ref().is_err_and(|cause| cause.kind() == io::ErrorKind::AlreadyExists) {
        return made;
    }
    check_own(path)?;
    // Removed and not emptied: others may read the one that was there, or have it open.
    fs::remove_file(path)?;
    make()
}

/// Whether a file of this user has the name, which another one may replace.
///
/// # Errors
/// As [`create`].
pub fn check_own(path: &Path) -> io::Result<bool> {
    let (found, own) = (fs::symlink_metadata(path), rustix::process::geteuid().as_raw());
    if found.as_ref().is_err_and(|cause| cause.kind() == io::ErrorKind::NotFound) {
        return Ok(false);
    }
    let found = found?;
    if found.is_symlink() {
        return Err(io::Error::other("a link has this name, and may lead to another file; remove it"));
    }
    if !found.is_file() {
        return Err(io::Error::other("what has this name is no file"));
    }
    if found.uid() != own {
        return Err(io::Error::other(format!("user {} has a file of this name; use another folder", found.uid())));
    }
    Ok(true)
}

/// Checks that a file which is about to be written is none of those that were read.
///
/// # Errors
/// It is one of them.
#[cfg(feature = "cli")]
pub(crate) fn check_apart(written: &Path, read: &[std::path::PathBuf]) -> Result<(), String> {
    let Ok(place) = fs::canonicalize(written) else { return Ok(()) };
    match read.iter().any(|other| fs::canonicalize(other).is_ok_and(|other| other == place)) {
        true => Err(format!("{}: this is one of the files to read; write to another one", written.display())),
        false => Ok(()),
    }
}

/// Writes a file, as [`create`] makes it.
///
/// # Errors
/// As `create`.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// Opens a file for reading. A pipe is refused and not waited for.
///
/// # Errors
/// It is no file; what the system says.
pub fn read(path: &Path) -> io::Result<File> {
    let file = File::from(open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("this is no file")) }
}

/// Reads a text of `most` bytes at most.
///
/// # Errors
/// It is no file, has more bytes, or is not UTF-8; what the system says.
pub fn text(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    read(path)?.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::PathBuf;

    use super::*;
    use crate::skipped::{Need, skipped};

    /// An empty folder.
    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("earlybird-files-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn only_this_user_can_read_what_is_made() {
        let folder = folder("made");
        let (file, precious) = (folder.join("file"), folder.join("precious"));
        fs::write(&file, "old").unwrap();
        fs::hard_link(&file, &precious).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        drop(create(&file).unwrap());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_to_string(&precious).unwrap(), "old", "the file was emptied, and not replaced");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_others_may_have_put_there_is_refused() {
        let folder = folder("taken");
        let (precious, taken) = (folder.join("precious"), folder.join("taken"));
        assert!(!check_own(&taken).unwrap());
        let refused = |words: &str| {
            for problem in [create(&taken).unwrap_err(), check_own(&taken).unwrap_err()] {
                assert!(problem.to_string().contains(words), "{problem}");
            }
        };
        fs::write(&precious, "precious").unwrap();
        for target in [&precious, &folder.join("nothing")] {
            symlink(target, &taken).unwrap();
            refused("a link has this name");
            fs::remove_file(&taken).unwrap();
        }
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert!(!folder.join("nothing").exists());
        rustix::fs::mknodat(rustix::fs::CWD, &taken, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        refused("no file");
        assert!(read(&taken).unwrap_err().to_string().contains("no file"));
        fs::remove_file(&taken).unwrap();
        match fs::write(&taken, "").and_then(|()| chown(&taken, Some(65534), None)) {
            Ok(()) => refused("user 65534 has a file of this name"),
            Err(cause) => {
                skipped(Need::Root, format_args!("no file can be given to another user here: {cause}"));
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_text_without_an_end_is_refused() {
        let problem = |path: &str| text(Path::new(path), 1000).unwrap_err().to_string();
        assert!(problem("/dev/zero").contains("no file"));
        assert!(problem("/proc/kallsyms").contains("more than 1000 bytes"));
    }
}
