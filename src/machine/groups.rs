//! The control groups of this process, in which containers and batch systems set limits (cgroups(7)).
//!
//! A limit may be set in the process's own group or in any enclosing group, so all of them count. Both versions of the
//! interface occur, and a machine may use both, each for some resources.

use std::fs;
use std::path::{Path, PathBuf};

/// The version of the interface that limits a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// A group that holds this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) version: Version,
    folder: PathBuf,
}

impl Group {
    /// Returns the groups of this process for a controller, from its own group outwards, as far as this process sees
    /// them.
    pub(super) fn of_this_process(controller: &str) -> Vec<Group> {
        Self::read(Path::new("/proc/self"), controller)
    }

    fn read(process: &Path, controller: &str) -> Vec<Group> {
        let text = |name: &str| fs::read_to_string(process.join(name)).unwrap_or_default();
        let (mounts, own) = (text("mountinfo"), text("cgroup"));
        let mounts = mounts.lines().filter_map(|line| Mount::parse(line, controller));
        mounts.filter_map(|mount| Some(mount.groups(own_path(&own, mount.version, controller)?))).flatten().collect()
    }

    /// Returns the text of one of its files.
    pub(super) fn text(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(file)).ok()
    }

    /// Returns the number in one of its files; `None` if the file holds no number, such as `max`.
    pub(super) fn number(&self, file: &str) -> Option<u64> {
        self.text(file)?.trim().parse().ok()
    }

    /// Returns a number that distinguishes it from other groups of the machine, even where processes see different
    /// parts of the tree.
    pub(super) fn identity(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(&self.folder).map_or(0, |folder| folder.ino() ^ folder.dev() << 48)
    }
}

/// Where a hierarchy of groups is mounted.
struct Mount {
    version: Version,
    /// The group that the mount point shows.
    root: String,
    point: PathBuf,
}

impl Mount {
    /// Parses a line of `/proc/self/mountinfo` (proc(5)); returns `None` if the hierarchy lacks the controller.
    fn parse(line: &str, controller: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let version = match right.next()? {
            "cgroup2" => Version::Two,
            "cgroup" if right.nth(1)?.split(',').any(|option| option == controller) => Version::One,
            _ => return None,
        };
        let mut left = left.split(' ').skip(3);
        Some(Mount { version, root: left.next()?.to_owned(), point: PathBuf::from(left.next()?) })
    }

    /// Returns the group at a path and the enclosing ones. If the mount does not show the path, because it belongs to
    /// another namespace, these start with the mount point, which is the nearest visible group.
    fn groups(&self, path: &str) -> Vec<Group> {
        let below = path.strip_prefix(self.root.trim_end_matches('/')).unwrap_or_default();
        let below = below.trim_start_matches('/');
        let shown = !below.split('/').any(|part| part == "..") && self.point.join(below).is_dir();
        let own = if shown { self.point.join(below) } else { self.point.clone() };
        let around = own.ancestors().take_while(|folder| folder.starts_with(&self.point));
        around.map(|folder| Group { version: self.version, folder: folder.to_owned() }).collect()
    }
}

/// Returns the path of the process's own group in `/proc/self/cgroup`, whose lines have a number, controllers and a
/// path.
fn own_path<'a>(text: &'a str, version: Version, controller: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let fits = match version {
            Version::One => controllers.split(',').any(|one| one == controller),
            Version::Two => controllers.is_empty(),
        };
        fits.then_some(path)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A machine's files in a temporary folder: those of the process, and its groups.
    #[derive(Debug)]
    pub(in crate::machine) struct Files(PathBuf);

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    impl Files {
        /// `mounts` are the lines of `mountinfo`, with `%` in place of the folder of the mount points.
        pub(in crate::machine) fn new(name: &str, mounts: &str, own: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("earlybird-{name}-{}", std::process::id()));
            let made = Files(root.clone());
            fs::create_dir_all(root.join("self")).unwrap();
            fs::write(root.join("self/mountinfo"), mounts.replace('%', &root.display().to_string())).unwrap();
            fs::write(root.join("self/cgroup"), own).unwrap();
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            made
        }

        pub(in crate::machine) fn groups(&self, controller: &str) -> Vec<Group> {
            Group::read(&self.0.join("self"), controller)
        }
    }

    const BOTH: &str = "25 20 0:22 / %/v1/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                        26 20 0:23 / %/v1/memory rw - cgroup cgroup rw,memory\n\
                        27 20 0:24 / %/v2 rw - cgroup2 cgroup2 rw\n28 20 0:25 / /proc rw - proc proc rw\n";

    #[test]
    fn groups_are_found_from_the_own_one_outwards() {
        let own = "4:memory:/job/step\n3:cpu,cpuacct:/\n0::/job/step\n";
        let files = [("v1/memory/job/step/a", "1\n"), ("v1/memory/job/a", "2"), ("v2/job/step/a", "max")];
        let machine = Files::new("groups", BOTH, own, &files);
        let found = machine.groups("memory");
        let versions: Vec<_> = found.iter().map(|group| group.version).collect();
        assert_eq!(versions, [[Version::One; 3], [Version::Two; 3]].concat());
        assert_eq!(
            found.iter().map(|group| group.number("a")).collect::<Vec<_>>()[..4],
            [Some(1), Some(2), None, None]
        );
        assert_eq!(found[3].text("a").as_deref(), Some("max"));
        assert_ne!(found[0].identity(), found[1].identity());
    }

    /// A container sees its own group as the root, and its file may name a path of the host.
    #[test]
    fn a_container_sees_a_part_of_the_tree() {
        let mounts = "27 20 0:24 /docker/abc %/v2 rw - cgroup2 cgroup2 rw\n";
        for own in ["0::/docker/abc/x\n", "0::/docker/abc\n", "0::/\n", "0::/../other\n", "0::/host/path\n"] {
            let machine = Files::new("container", mounts, own, &[("v2/x/a", "3"), ("v2/a", "4")]);
            let numbers: Vec<_> = machine.groups("memory").iter().map(|group| group.number("a")).collect();
            let expected: &[_] = if own.contains("/x") { &[Some(3), Some(4)] } else { &[Some(4)] };
            assert_eq!(numbers, expected, "{own}");
        }
        assert_eq!(Files::new("none", "", "", &[]).groups("memory"), []);
    }
}
