//! The bindings against the installed headers: a C compiler must find every structure as large, and
//! every field in the same place, as Rust does.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../skipped/mod.rs"]
mod skipped;
mod table;

use std::fmt::Write;
use std::process::Command;

use skipped::{Need, skipped};
use table::LAYOUTS;

pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: &'static [(&'static str, usize)],
}

/// A program that prints every size and offset, and the same as Rust has it.
fn both() -> (String, String) {
    let headers = ["fabric", "fi_endpoint", "fi_domain", "fi_eq", "fi_cm", "fi_rma", "fi_atomic", "fi_trigger"];
    let mut program = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    headers.iter().for_each(|header| writeln!(program, "#include <rdma/{header}.h>").unwrap());
    program += "int main(void) {\nprintf(\"%d.%d\\n\", FI_MAJOR_VERSION, FI_MINOR_VERSION);\n";
    let mut ours = String::new();
    for Layout { name, size, fields } in LAYOUTS {
        writeln!(program, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
        writeln!(ours, "{name} {size}").unwrap();
        for (field, offset) in *fields {
            writeln!(program, "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));").unwrap();
            writeln!(ours, "{name}.{field} {offset}").unwrap();
        }
    }
    program += "return 0;\n}\n";
    (program, ours)
}

/// The version that the bindings were made from. Later ones add fields at the end of structures, and
/// by the version that was asked for they know that these are not there.
const MADE_FROM: &str = "1.17";

#[test]
fn structures_are_as_the_c_compiler_has_them() {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let folder = std::env::temp_dir().join(format!("earlybird-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (program, ours) = both();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let probe = Command::new(&compiler).args(["-E", "-x", "c", "-include", "rdma/fabric.h", "/dev/null"]).output();
    if !probe.as_ref().is_ok_and(|probe| probe.status.success()) {
        std::fs::remove_dir_all(&folder).unwrap();
        let why = format!("no {compiler} or no headers of libfabric here; install gcc and libfabric-dev");
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
        let (name, number) = ours.split_once(' ').unwrap();
        let longer = version != MADE_FROM && !name.contains('.');
        let other: usize = theirs.strip_prefix(name).and_then(|rest| rest.trim().parse().ok()).unwrap();
        ours == theirs || (longer && other > number.parse().unwrap())
    };
    let differs: Vec<_> = ours.lines().zip(theirs.lines()).filter(|(ours, theirs)| !fits(ours, theirs)).collect();
    assert!(differs.is_empty(), "ours and those of {version}: {differs:?}");
    println!("{} structures, {} sizes and offsets agree with {version}", LAYOUTS.len(), ours.lines().count());
}
