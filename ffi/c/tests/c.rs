//! The C library as C programs meet it: installed, compiled against by several compilers, run by one rank and by several, under
//! valgrind and AddressSanitizer.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../tests/skipped/mod.rs"]
mod skipped;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use skipped::{Need, skipped};

/// Where the library is installed for these tests.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prefix");
        let _ = fs::remove_dir_all(&prefix);
        let args = xtask::install::Args { prefix: prefix.clone(), destdir: None, archive: Some(archive()) };
        xtask::install::run(&xtask::root(), &args).unwrap();
        prefix
    })
}

/// The static library that cargo has built with these tests and put beside them. Builds with other features lie there, too:
/// the newest one is that of these tests, or was built since, unless two checkouts share a target folder.
fn archive() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let is_archive = |name: &str| name.starts_with("libearlybird_c-") && name.ends_with(".a");
    let files = fs::read_dir(tests.parent().unwrap()).unwrap().map(|entry| entry.unwrap());
    let archives = files.filter(|file| file.file_name().to_str().is_some_and(is_archive));
    let newest = archives.max_by_key(|file| file.metadata().unwrap().modified().unwrap());
    newest.expect("cargo builds the library before its tests").path()
}

/// Whether a command is there; says so if not.
fn has(need: Need, command: &str) -> bool {
    let found = Command::new(command).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        skipped(need, format_args!("there is no {command} here"));
    }
    found
}

fn has_compiler() -> bool {
    has(Need::Compiler, "cc") && has(Need::Compiler, "c++")
}

const EXAMPLES: [&str; 3] = ["quorum", "poll", "collectives"];

fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("earlybird-c-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

fn source(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = ["examples", "tests/programs"].map(|place| folder.join(place).join(name).with_extension("c"));
    places.into_iter().find(|file| file.exists()).unwrap_or_else(|| panic!("there is no {name}.c"))
}

/// How a program has the library.
#[derive(Clone, Copy, Debug)]
enum Linked {
    Shared,
    Static,
}

/// Compiles a program. Every warning is an error.
fn compile(compiler: &str, name: &str, linked: Linked, more: &[&str]) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique());
    let library = prefix().join("lib");
    let mut command = Command::new(compiler);
    command.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-g"]).args(more);
    command.arg("-I").arg(prefix().join("include")).arg(source(name)).arg("-o").arg(&program);
    match linked {
        Linked::Shared => {
            command.arg("-L").arg(&library).arg("-learlybird").arg(format!("-Wl,-rpath,{}", library.display()))
        }
        Linked::Static => command.arg(library.join("libearlybird.a")).args(["-lgcc_s", "-lm", "-ldl"]),
    };
    let output = command.arg("-lpthread").output().unwrap();
    assert!(output.status.success(), "{compiler} {name}: {}", text(&output));
    program
}

/// Starts a program as every rank of a world; returns what each of them printed. `before`: a command that runs it.
fn run(before: &[&str], program: &Path, arguments: &[&str], ranks: u32) -> Vec<Output> {
    let store = format!("unix:{}", unique());
    let start = |rank: u32| -> Child {
        let mut words = before.iter().copied().map(std::ffi::OsStr::new).chain([program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in ["EARLYBIRD_FABRIC", "EARLYBIRD_PROVIDER", "EARLYBIRD_SECRET"] {
            command.env_remove(name);
        }
        command.env("EARLYBIRD_RANK", rank.to_string()).env("EARLYBIRD_WORLD_SIZE", ranks.to_string());
        command.env("EARLYBIRD_STORE", &store).spawn().unwrap()
    };
    let started: Vec<Child> = (0..ranks).map(start).collect();
    started.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

/// Every rank ends well, and prints that it does.
fn runs_well(before: &[&str], program: &Path, arguments: &[&str], ranks: u32) {
    for (rank, output) in run(before, program, arguments, ranks).iter().enumerate() {
        assert!(output.status.success(), "{before:?} {program:?}, rank {rank}: {}: {}", output.status, text(output));
        assert!(text(output).contains(&format!("rank {rank} of {ranks}")), "rank {rank}: {}", text(output));
    }
}

#[test]
fn the_header_is_what_the_sources_say() {
    xtask::header::run(&xtask::root(), true).unwrap();
}

#[test]
fn the_header_is_cpp_too() {
    if !has_compiler() {
        return;
    }
    let header = prefix().join("include/earlybird.h");
    let check = ["-x", "c++", "-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"];
    let output = Command::new("c++").args(check).arg(header).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn examples_run_however_they_are_linked() {
    if !has_compiler() {
        return;
    }
    for (compiler, linked) in [("cc", Linked::Shared), ("cc", Linked::Static), ("clang", Linked::Shared)] {
        if compiler == "clang" && !has(Need::Clang, "clang") {
            continue;
        }
        for name in EXAMPLES {
            let program = compile(compiler, name, linked, &[]);
            runs_well(&[], &program, &[], 1);
            runs_well(&[], &program, &[], 4);
        }
    }
}

/// Wrong handles, null pointers, calls from two threads, forked children: errors, and no crash.
#[test]
fn wrong_calls_are_errors() {
    if !has_compiler() {
        return;
    }
    let program = compile("cc", "misuse", Linked::Shared, &[]);
    for ranks in [1, 2] {
        runs_well(&[], &program, &[], ranks);
    }
}

/// Messages go to standard error, with the host, from the level on that the environment chooses.
#[test]
fn messages_are_written_to_standard_error() {
    if !has_compiler() {
        return;
    }
    let program = compile("cc", "quorum", Linked::Shared, &[]);
    let program = program.to_str().unwrap();
    let told = |level: &str| run(&["env", &format!("EARLYBIRD_LOG={level}")], Path::new(program), &[], 1).remove(0);
    let debug = String::from_utf8(told("debug").stderr).unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let line = debug.lines().find(|line| line.contains("joined")).unwrap_or_else(|| panic!("{debug}"));
    assert!(line.starts_with(host.trim()) && line.contains("DEBUG"), "{line}");
    assert!(told("").stderr.is_empty() && told("").status.success());
    // Where it cannot be written, the program goes on.
    let full = run(&["sh", "-c", "EARLYBIRD_LOG=debug exec \"$0\" 2> /dev/full"], Path::new(program), &[], 1).remove(0);
    assert!(full.status.success(), "{}", text(&full));
    let refused = told("loud");
    assert!(!refused.status.success() && text(&refused).contains("EARLYBIRD_LOG=loud"), "{}", text(&refused));
}

#[test]
fn a_death_is_told_to_those_that_wait_and_those_that_poll() {
    if !has_compiler() {
        return;
    }
    let program = compile("cc", "death", Linked::Shared, &[]);
    for way in ["wait", "poll"] {
        let ends = run(&[], &program, &[way], 3);
        for (rank, output) in ends.iter().enumerate().filter(|(rank, _)| *rank != 1) {
            assert!(output.status.success(), "{way}, rank {rank}: {}", text(output));
            assert!(text(output).contains("peer 1: ") && text(output).contains("rank 1 died"), "{}", text(output));
        }
    }
}

#[test]
fn valgrind_finds_nothing() {
    if !has_compiler() || !has(Need::Valgrind, "valgrind") {
        return;
    }
    let valgrind =
        ["valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite"];
    // Before 3.21 it knows no pidfd_open(2), by which ranks watch each other.
    for name in EXAMPLES.into_iter().chain(["misuse"]) {
        runs_well(&valgrind, &compile("cc", name, Linked::Shared, &[]), &[], 1);
    }
}

#[test]
fn address_sanitizer_finds_nothing() {
    if !has_compiler() {
        return;
    }
    for (name, ranks) in EXAMPLES.map(|name| (name, 2)).into_iter().chain([("misuse", 1), ("misuse", 2)]) {
        runs_well(&[], &compile("cc", name, Linked::Shared, &["-fsanitize=address,undefined"]), &[], ranks);
    }
}

/// The symbols have a version, and there are no others.
#[test]
fn symbols_have_versions() {
    if !has_compiler() {
        return;
    }
    let library = prefix().join("lib/libearlybird.so");
    let output = Command::new("objdump").arg("-T").arg(&library).output().unwrap();
    let listed = text(&output);
    let defined = listed.lines().filter(|line| line.contains(" g ") && line.contains(".text"));
    let mut count = 0;
    for line in defined {
        assert!(line.contains("EARLYBIRD_0.1") && line.contains(" eb_"), "{line}");
        count += 1;
    }
    let header = fs::read_to_string(prefix().join("include/earlybird.h")).unwrap();
    assert_eq!(count, xtask::install::functions(&header).len(), "{listed}");
    let output = Command::new("objdump").arg("-p").arg(&library).output().unwrap();
    assert!(text(&output).contains("SONAME") && text(&output).contains("libearlybird.so.0\n"), "{}", text(&output));
}

#[test]
fn pkg_config_and_cmake_files_say_where_it_is() {
    let read = |file: &str| fs::read_to_string(prefix().join("lib").join(file)).unwrap();
    let described = read("pkgconfig/earlybird.pc");
    assert!(described.contains(&format!("prefix={}", prefix().display())) && described.contains("Version: 0.1.0"));
    assert!(read("cmake/earlybird/earlybird-config.cmake").contains("libearlybird.so.0.1.0"));
    assert!(prefix().join("lib/libearlybird.so.0").exists() && prefix().join("lib/libearlybird.a").exists());
}
