//! The bindings against the installed headers: a C compiler must find every structure as large, and
//! every field in the same place, as Rust does.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod ofi;
#[path = "../skipped/mod.rs"]
mod skipped;
mod verbs;

use std::fmt::Write;
use std::process::Command;

use skipped::{Need, skipped};

pub(crate) struct Layout {
    /// As C has it, with its keyword.
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: &'static [(&'static str, usize)],
}

/// A library whose headers are compared.
struct Headers {
    library: &'static str,
    /// The Debian package.
    package: &'static str,
    files: &'static [&'static str],
    /// A statement that prints their version, where they have it.
    version: &'static str,
    /// The version that the bindings were made from. Later ones add fields at the end of structures,
    /// and by the version that was asked for they know that these are not there.
    made_from: &'static str,
    layouts: &'static [Layout],
}

const OFI: Headers = Headers {
    library: "libfabric",
    package: "libfabric-dev",
    files: &[
        "rdma/fabric.h",
        "rdma/fi_endpoint.h",
        "rdma/fi_domain.h",
        "rdma/fi_eq.h",
        "rdma/fi_cm.h",
        "rdma/fi_rma.h",
        "rdma/fi_atomic.h",
        "rdma/fi_trigger.h",
    ],
    version: "printf(\"%d.%d\\n\", FI_MAJOR_VERSION, FI_MINOR_VERSION);",
    made_from: "1.17",
    layouts: ofi::LAYOUTS,
};

/// Structures of libibverbs never change; its headers do not tell their version.
const VERBS: Headers = Headers {
    library: "libibverbs",
    package: "libibverbs-dev",
    files: &["infiniband/verbs.h"],
    version: "printf(\"any\\n\");",
    made_from: "any",
    layouts: verbs::LAYOUTS,
};

/// A program that prints every size and offset, and the same as Rust has it.
fn both(headers: &Headers) -> (String, String) {
    let mut program = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    headers.files.iter().for_each(|file| writeln!(program, "#include <{file}>").unwrap());
    writeln!(program, "int main(void) {{\n{}", headers.version).unwrap();
    let mut ours = String::new();
    for Layout { name, size, fields } in headers.layouts {
        writeln!(program, "printf(\"{name} %zu\\n\", sizeof({name}));").unwrap();
        writeln!(ours, "{name} {size}").unwrap();
        for (field, offset) in *fields {
            writeln!(program, "printf(\"{name}.{field} %zu\\n\", offsetof({name}, {field}));").unwrap();
            writeln!(ours, "{name}.{field} {offset}").unwrap();
        }
    }
    program += "return 0;\n}\n";
    (program, ours)
}

fn compare(headers: &Headers) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let library = headers.library;
    let folder = std::env::temp_dir().join(format!("earlybird-layout-{library}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (program, ours) = both(headers);
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let probe = Command::new(&compiler).args(["-E", "-x", "c", "-include", headers.files[0], "/dev/null"]).output();
    if !probe.as_ref().is_ok_and(|probe| probe.status.success()) {
        std::fs::remove_dir_all(&folder).unwrap();
        let why = format!("no {compiler} or no headers of {library} here; install gcc and {}", headers.package);
        return skipped(Need::Headers, why);
    }
    let compiled = Command::new(&compiler).args(["-w", "-o"]).arg(&binary).arg(&source).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let theirs = Command::new(&binary).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    let (version, theirs) = theirs.split_once('\n').unwrap();
    assert_eq!(theirs.lines().count(), ours.lines().count());
    let fits = |ours: &str, theirs: &str| {
        let (name, number) = ours.rsplit_once(' ').unwrap();
        let longer = version != headers.made_from && !name.contains('.');
        let other: usize = theirs.strip_prefix(name).and_then(|rest| rest.trim().parse().ok()).unwrap();
        ours == theirs || (longer && other > number.parse().unwrap())
    };
    let differs: Vec<_> = ours.lines().zip(theirs.lines()).filter(|(ours, theirs)| !fits(ours, theirs)).collect();
    assert!(differs.is_empty(), "ours and those of {library} {version}: {differs:?}");
    let many = (headers.layouts.len(), ours.lines().count());
    println!("{library}: {} structures, {} sizes and offsets agree with {version}", many.0, many.1);
}

#[test]
fn structures_of_libfabric_are_as_the_c_compiler_has_them() {
    compare(&OFI);
}

#[test]
fn structures_of_libibverbs_are_as_the_c_compiler_has_them() {
    compare(&VERBS);
}
