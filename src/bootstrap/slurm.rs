//! What Slurm's variables say about the process that has them: whether it is a task of a step, and where the ranks of
//! the step can meet.
//!
//! `srun` starts steps. A batch script also has variables of a task, but is not a step. It and the shell of `salloc`
//! are one process, whatever the job has asked for.

use super::store_address::StoreAddress;

/// The variable of Slurm that names a task of a step.
pub(super) const RANK: &str = "SLURM_PROCID";
/// The variables with the number of ranks. The first one belongs to the step; others may belong to the job (`srun
/// --preserve-env`).
pub(super) const RANKS: &[&str] = &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
/// The variables with the number of machines.
pub(super) const MACHINES: &[&str] = &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"];
/// The variables with the step.
const STEP: [&str; 2] = ["SLURM_STEP_ID", "SLURM_STEPID"];
/// The variables with the job. The parts of a heterogeneous job are jobs with numbers of their own; the first one
/// stands for all.
const JOB: [&str; 3] = ["SLURM_JOB_ID_HET_GROUP_0", "SLURM_JOB_ID_PACK_GROUP_0", "SLURM_JOB_ID"];
/// The variable with the name of a PMIx job; the names of Slurm begin with `slurm.`.
const PMIX_NAMESPACE: &str = "PMIX_NAMESPACE";
/// The variables with the number of parts of a heterogeneous job.
const PARTS: [&str; 2] = ["SLURM_HET_SIZE", "SLURM_PACK_SIZE"];

/// The first number of steps that `srun` did not start, such as the batch script (4294967291) and the shell of `salloc`
/// (4294967290).
const FIRST_SPECIAL_STEP: u32 = 0xFFFF_FFF0;

/// The maximum number of nodes of a list; a longer one is not read.
const MOST_NODES: usize = 1 << 16;

fn first(lookup: &impl Fn(&str) -> Option<String>, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| lookup(name))
}

/// Returns whether `srun` started the process or one of its ancestors.
pub(super) fn is_step(lookup: &impl Fn(&str) -> Option<String>) -> bool {
    let step = first(lookup, &STEP).and_then(|step| step.trim().parse::<u32>().ok());
    step.is_some_and(|step| step < FIRST_SPECIAL_STEP) && lookup(RANK).is_some()
}

/// Returns whether the PMI or PMIx of a process is that of the step. `mpirun` starts its own daemons by `srun`, and its
/// ranks inherit the variables of a daemon. In that case rank or size differ, or the launcher has told something that
/// Slurm does not tell.
pub(super) fn speaks_pmi(
    lookup: &impl Fn(&str) -> Option<String>,
    rank: &str,
    ranks: &[&str],
    local: Option<&str>,
) -> bool {
    let same = |theirs: Option<String>, own: Option<String>| theirs.is_none() || theirs == own;
    is_step(lookup)
        && (lookup(PMIX_NAMESPACE).is_none() || has_pmix_namespace(lookup))
        && local.and_then(lookup).is_none()
        && lookup(rank) == lookup(RANK)
        && same(first(lookup, ranks), first(lookup, RANKS))
}

/// Returns whether Slurm has given the process the name of a PMIx job.
pub(super) fn has_pmix_namespace(lookup: &impl Fn(&str) -> Option<String>) -> bool {
    lookup(PMIX_NAMESPACE).is_some_and(|name| name.starts_with("slurm."))
}

/// Returns whether the job is heterogeneous: several jobs of Slurm, whose tasks `srun --het-group` numbers like those
/// of one.
pub(super) fn is_heterogeneous(lookup: &impl Fn(&str) -> Option<String>) -> bool {
    first(lookup, &PARTS).and_then(|parts| parts.trim().parse::<u32>().ok()).is_some_and(|parts| parts > 1)
}

/// Returns what the starts of all ranks have in common.
pub(super) fn together(lookup: &impl Fn(&str) -> Option<String>) -> &'static str {
    if is_heterogeneous(lookup) {
        "by the same srun of this heterogeneous job (`srun --het-group=0,1` starts one world in two of its groups)"
    } else {
        "by the same srun"
    }
}

/// Returns the name of the job and the step, the same for all ranks.
pub(super) fn job(lookup: &impl Fn(&str) -> Option<String>) -> Option<String> {
    Some(format!("{}.{}", first(lookup, &JOB)?, first(lookup, &STEP)?))
}

/// Returns where the ranks of a step on several nodes meet: on the node of rank 0, at a port that follows from the name
/// of the step.
///
/// Rank 0 is on the first node of the list. The list is sorted, so this does not hold if the user gave an order of the
/// nodes, or if a heterogeneous job began with a later node. Then rank 0 is on one of the listed nodes.
pub(super) fn meeting(lookup: &impl Fn(&str) -> Option<String>, hash: u64) -> Option<StoreAddress> {
    let mut hosts = nodes(&first(lookup, &["SLURM_STEP_NODELIST", "SLURM_NODELIST"])?)?;
    let port = StoreAddress::port_of(hash);
    let arbitrary = lookup("SLURM_DISTRIBUTION").is_some_and(|way| way.contains("arbitrary"));
    match hosts.len() {
        2.. if arbitrary || is_heterogeneous(lookup) => Some(StoreAddress::Among { hosts, port }),
        _ => Some(StoreAddress::Tcp { host: hosts.swap_remove(0), port }),
    }
}

/// Returns the nodes of a list such as `n[01-03,7],m5`, in its order; `None` for an invalid list.
fn nodes(list: &str) -> Option<Vec<String>> {
    let mut depth = 0;
    let words = list.split(|character| {
        depth += i32::from(character == '[') - i32::from(character == ']');
        character == ',' && depth == 0
    });
    let mut found = Vec::new();
    for word in words {
        expand(word, &mut found)?;
    }
    Some(found)
}

/// Adds the nodes of a word such as `r[1-2]n[01-16]`.
fn expand(word: &str, found: &mut Vec<String>) -> Option<()> {
    let mut names = vec![String::new()];
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, after) = after.split_once(']')?;
        let numbers = ranges.split(',').map(numbers).collect::<Option<Vec<_>>>()?.concat();
        if numbers.len().saturating_mul(names.len()) > MOST_NODES {
            return None;
        }
        let all = |name: &String| numbers.iter().map(|number| format!("{name}{before}{number}")).collect::<Vec<_>>();
        names = names.iter().flat_map(all).collect();
        rest = after;
    }
    if word.is_empty() || rest.contains(']') || found.len() + names.len() > MOST_NODES {
        return None;
    }
    found.extend(names.into_iter().map(|name| name + rest));
    Some(())
}

/// Returns the numbers of a range such as `01-03`, with their zeros.
fn numbers(range: &str) -> Option<Vec<String>> {
    let (from, to) = range.split_once('-').unwrap_or((range, range));
    let (begin, end) = (from.parse::<u32>().ok()?, to.parse::<u32>().ok()?);
    let is_short = end.checked_sub(begin)? < MOST_NODES as u32;
    is_short.then(|| (begin..=end).map(|number| format!("{number:0width$}", width = from.len())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_read_in_their_order() {
        for (list, expected) in [
            ("a", "a"),
            ("a,b", "a b"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[07,9-10]", "n07 n9 n10"),
            ("n[098-101]", "n098 n099 n100 n101"),
            ("n[1-2]-ib,m", "n1-ib n2-ib m"),
            ("r1-n[4]", "r1-n4"),
            ("r[1-2]n[3,5]x,b[8-9]", "r1n3x r1n5x r2n3x r2n5x b8 b9"),
        ] {
            assert_eq!(nodes(list).map(|nodes| nodes.join(" ")).as_deref(), Some(expected), "{list}");
        }
        for list in ["", "a,", "n[1-3", "n1-3]", "n[]", "n[a-b]", "n[3-1]", "n[0-4294967295]", "n[1-300]x[1-300]"] {
            assert_eq!(nodes(list), None, "{list}");
        }
    }
}
