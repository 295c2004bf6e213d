//! Installs the C library.
//!
//! rustc cannot give the symbols of a shared library versions. So the shared library is linked from the static one, by the C
//! compiler that rustc needs anyway, with a map of the symbols that the header names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of the interface. It grows when a program that was built before could no longer run.
const INTERFACE: &str = "0";
/// The version of the symbols.
const SYMBOLS: &str = "EARLYBIRD_0.1";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What to install, and where.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to: the folder that gets lib and include
    #[arg(long, default_value = "/usr/local")]
    pub prefix: PathBuf,
    /// Install below this folder, as if it were the root: for packages
    #[arg(long)]
    pub destdir: Option<PathBuf>,
    /// Install this static library, and build none: for tests
    #[arg(long, value_name = "FILE")]
    pub archive: Option<PathBuf>,
}

/// Builds and installs.
///
/// # Errors
/// A command that failed; what cannot be written.
pub fn run(root: &Path, args: &Args) -> Result<(), String> {
    if !args.prefix.is_absolute() {
        return Err(format!("--prefix {}: use a path that begins with /", args.prefix.display()));
    }
    let prefix = match &args.destdir {
        Some(destdir) => destdir.join(args.prefix.strip_prefix("/").unwrap_or(&args.prefix)),
        None => args.prefix.clone(),
    };
    let archive = match &args.archive {
        Some(archive) => archive.clone(),
        None => build(root)?,
    };

    let [libraries, headers, pkgconfig, cmake] =
        ["lib", "include", "lib/pkgconfig", "lib/cmake/earlybird"].map(|folder| prefix.join(folder));
    for folder in [&libraries, &headers, &pkgconfig, &cmake] {
        fs::create_dir_all(folder).map_err(at(folder))?;
    }
    copy(&archive, &libraries.join("libearlybird.a"))?;
    let header = root.join("ffi/c/include/earlybird.h");
    copy(&header, &headers.join("earlybird.h"))?;

    let names = fs::read_to_string(&header).map_err(at(&header))?;
    let map = archive.with_file_name("earlybird.map");
    let symbols: String = functions(&names).iter().map(|name| format!("    {name};\n")).collect();
    fs::write(&map, format!("{SYMBOLS} {{\n  global:\n{symbols}  local: *;\n}};\n")).map_err(at(&map))?;
    let (soname, file) = (format!("libearlybird.so.{INTERFACE}"), format!("libearlybird.so.{VERSION}"));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    command(
        Command::new(compiler)
            .args(["-shared", "-Wl,-s", "-Wl,--gc-sections", "-Wl,--no-undefined"])
            .arg(format!("-Wl,-soname,{soname}"))
            .arg(format!("-Wl,--version-script,{}", map.display()))
            .args(functions(&names).iter().map(|name| format!("-Wl,-u,{name}")))
            .arg(&archive)
            .args(LIBRARIES)
            .arg("-o")
            .arg(libraries.join(&file)),
    )?;
    for link in [&soname, "libearlybird.so"] {
        let link = libraries.join(link);
        if link.symlink_metadata().is_ok() {
            fs::remove_file(&link).map_err(at(&link))?;
        }
        std::os::unix::fs::symlink(&file, &link).map_err(at(&link))?;
    }

    let fill =
        |template: &str| template.replace("@PREFIX@", &args.prefix.display().to_string()).replace("@VERSION@", VERSION);
    for (file, template) in [
        (pkgconfig.join("earlybird.pc"), include_str!("templates/earlybird.pc")),
        (cmake.join("earlybird-config.cmake"), include_str!("templates/earlybird-config.cmake")),
        (cmake.join("earlybird-config-version.cmake"), include_str!("templates/earlybird-config-version.cmake")),
    ] {
        fs::write(&file, fill(template)).map_err(at(&file))?;
    }
    println!("installed libearlybird {VERSION} below {}", prefix.display());
    Ok(())
}

/// Builds the static library, and says where it is.
fn build(root: &Path) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let build = ["build", "--release", "--package", "earlybird-c", "--lib"];
    command(Command::new(cargo).current_dir(root).args(build))?;
    Ok(target.join("release/libearlybird_c.a"))
}

/// What the static library needs of the system.
const LIBRARIES: [&str; 5] = ["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"];

/// The functions that a header declares.
#[must_use]
pub fn functions(header: &str) -> Vec<&str> {
    let names = header.match_indices("eb_").filter_map(|(at, _)| {
        let name = &header[at..];
        let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))?;
        let is_declared = name[end..].starts_with('(');
        let is_whole = !header[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        (is_declared && is_whole).then(|| &name[..end])
    });
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(at(to))
}

fn at(file: &Path) -> impl FnOnce(std::io::Error) -> String + use<> {
    let file = file.display().to_string();
    move |cause| format!("{file}: {cause}")
}

fn command(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|cause| format!("{name}: {cause}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name}: {status}")) }
}
