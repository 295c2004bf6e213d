//! What a rank saves of a collective to resume it in a new world.
//!
//! A checkpoint is made after a round from which nothing is carried ([`Outcome::can_checkpoint`](super::Outcome)). So
//! it holds no contributions: besides its application's state, a rank needs only the round, and its model if it has a
//! register.
#![forbid(unsafe_code)]

use std::fmt;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::choices::digest;
use super::core::{Cut, Part, SavedQuorum};
use crate::error::{Error, Result};
use crate::reduce::{Dtype, Element};

/// The version of the format.
const VERSION: u32 = 1;

/// The maximum length of the header: enough for some million tensors, or some hundred thousand ranks.
const MOST_HEADER: u64 = 64 << 20;

/// The largest round. No run gets that far, and the rounds after it can still be counted.
const MOST_ROUNDS: u64 = 1 << 62;

/// The length of a checksum, in bytes.
const CHECKSUM: usize = 32;

/// A rank's part of a collective after a round: plain data, which can be written to a file and read again.
/// [`Outcome::checkpoint`](crate::Outcome::checkpoint) makes it, and
/// [`AllreduceBuilder::restore`](crate::AllreduceBuilder::restore) uses it.
///
/// All ranks save the same round, each in a checkpoint of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct Checkpoint {
    header: Header,
    model: Option<Vec<u8>>,
}

/// The first line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    earlybird_checkpoint: u32,
    rank: u32,
    ranks: u32,
    round: u64,
    element: String,
    lengths: Vec<usize>,
    /// The number of the run, the same on all of its ranks.
    run: u64,
    /// A digest of the round's cut.
    cut: u64,
    /// The length of the model in bytes, if there is one.
    model: Option<u64>,
    /// What the next quorums follow from, if the collective chooses them itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    auto: Option<SavedQuorum>,
    /// Whether numbers begin with their lowest byte.
    little_endian: bool,
}

impl Checkpoint {
    /// Makes the checkpoint of a rank after the round of `cut`.
    pub(super) fn new(
        (rank, ranks): (u32, u32),
        run: u64,
        cut: &Cut,
        (element, lengths): (Dtype, &[usize]),
        model: Option<&[u8]>,
        auto: Option<SavedQuorum>,
    ) -> Self {
        let header = Header {
            earlybird_checkpoint: VERSION,
            rank,
            ranks,
            round: cut.round(),
            element: element.to_string(),
            lengths: lengths.to_vec(),
            run,
            cut: digest_of(cut),
            model: model.map(|bytes| bytes.len() as u64),
            auto,
            little_endian: cfg!(target_endian = "little"),
        };
        Checkpoint { header, model: model.map(<[u8]>::to_vec) }
    }

    /// Returns the rank that saved the checkpoint.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.header.rank
    }

    /// Returns the number of ranks in its world.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.header.ranks
    }

    /// Returns the round after which it was saved.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.header.round
    }

    /// Returns the rank's model after the round. `None` if the collective has no
    /// [`memory`](crate::AllreduceBuilder::memory), or one of another element type.
    #[must_use]
    pub fn model<T: Element>(&self) -> Option<Vec<T>> {
        let bytes = self.model.as_ref().filter(|_| self.header.element == T::DTYPE.to_string())?;
        let mut model = vec![<T as bytemuck::Zeroable>::zeroed(); bytes.len() / size_of::<T>()];
        bytemuck::cast_slice_mut::<T, u8>(&mut model).copy_from_slice(bytes);
        Some(model)
    }

    pub(super) fn model_bytes(&self) -> Option<&[u8]> {
        self.model.as_deref()
    }

    pub(super) fn quorum(&self) -> Option<&SavedQuorum> {
        self.header.auto.as_ref()
    }

    /// Returns a name that differs from the name of any checkpoint of another round or run.
    pub(super) fn name(&self) -> String {
        let Header { round, run, cut, .. } = self.header;
        format!("round {round} of run {:016x}", digest([run, cut].into_iter()))
    }

    /// Describes how a collective differs from the one that was saved, with both values; `None` if it does not.
    pub(super) fn difference(
        &self,
        (rank, ranks): (u32, u32),
        (element, lengths): (Dtype, &[usize]),
    ) -> Option<String> {
        let Header { rank: saved_rank, ranks: saved_ranks, element: saved_element, lengths: saved, .. } = &self.header;
        if *saved_ranks != ranks {
            return Some(format!("it is of a world of {saved_ranks} ranks, and this one has {ranks}; start as many"));
        }
        if *saved_rank != rank {
            return Some(format!("rank {saved_rank} saved it, and this is rank {rank}; give each rank its own"));
        }
        if *saved_element != element.to_string() {
            return Some(format!(
                "its elements are {saved_element}, and here they are {element}; choose the same type"
            ));
        }
        if saved != lengths {
            let at = saved.iter().zip(lengths).take_while(|(saved, now)| saved == now).count();
            let length =
                |of: &[usize]| of.get(at).map_or("missing".to_owned(), |length| format!("{length} elements long"));
            let (saved, now) = (length(saved), length(lengths));
            return Some(format!("its tensor {at} is {saved}, and here that is {now}; choose the same lengths"));
        }
        None
    }

    /// Writes the checkpoint: a line of JSON that describes it, the bytes of the model, and a checksum of both.
    ///
    /// To get a complete file or none, write to a temporary file beside the target, flush it, and rename it.
    ///
    /// # Errors
    /// The error of the writer. Also a header of more than 64 MiB, which very many tensors cause.
    pub fn write_to(&self, mut to: impl Write) -> Result<()> {
        let operation = "checkpoint.write_to";
        let mut header =
            serde_json::to_vec(&self.header).map_err(|problem| self.bad(operation, &problem.to_string()))?;
        header.push(b'\n');
        if header.len() as u64 > MOST_HEADER {
            return Err(self.bad(operation, "too many tensors; make them fewer by putting several into one"));
        }
        let model = self.model.as_deref().unwrap_or_default();
        let checksum = Sha256::new().chain_update(&header).chain_update(model).finalize();
        let parts: [&[u8]; 3] = [&header, model, &checksum];
        let written = parts.into_iter().try_for_each(|part| to.write_all(part)).and_then(|()| to.flush());
        written.map_err(|cause| Error::os(self.rank(), operation, cause))
    }

    /// Reads what [`write_to`](Checkpoint::write_to) wrote, and nothing after it. It reads the first line byte by byte,
    /// so pass a buffered reader.
    ///
    /// # Errors
    /// [`Error::Config`] for anything else, with the cause: another format or version, a missing part, a wrong
    /// checksum, or impossible sizes. Allocates memory only for bytes that are there.
    pub fn read_from(mut from: impl Read) -> Result<Self> {
        Self::read(&mut from).map_err(|problem| Error::Config(format!("checkpoint: {problem}")))
    }

    fn read(from: &mut impl Read) -> std::result::Result<Self, String> {
        let line = read_line(from)?;
        let header: Header = serde_json::from_slice(&line)
            .map_err(|problem| format!("this is not a checkpoint of version {VERSION}: {problem}"))?;
        header.check()?;
        let mut model = Vec::new();
        let bytes = header.model.unwrap_or(0);
        let read = from.take(bytes).read_to_end(&mut model).map_err(unreadable)?;
        if (read as u64) < bytes {
            return Err(format!("the model should have {bytes} bytes, and only {read} are there; the file is cut off"));
        }
        let mut checksum = [0; CHECKSUM];
        from.read_exact(&mut checksum).map_err(unreadable)?;
        if Sha256::new().chain_update(&line).chain_update(&model).finalize().as_slice() != checksum {
            return Err("its checksum does not fit; the file was changed or damaged, use another checkpoint".to_owned());
        }
        Ok(Checkpoint { model: header.model.map(|_| model), header })
    }

    fn bad(&self, operation: &'static str, problem: &str) -> Error {
        Error::Config(format!("rank {}: {operation}: {problem}", self.rank()))
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Checkpoint").field(&self.header).finish()
    }
}

impl Header {
    /// Checks that such a checkpoint is possible, and that it comes from a machine with this byte order.
    fn check(&self) -> std::result::Result<(), String> {
        let Header { earlybird_checkpoint: version, rank, ranks, round, ref lengths, model, .. } = *self;
        if version != VERSION {
            return Err(format!(
                "this is a checkpoint of version {version}, and only {VERSION} is known; use the release that wrote it"
            ));
        }
        if rank >= ranks {
            return Err(format!("rank {rank} is not in a world of {ranks} ranks"));
        }
        if !(1..=MOST_ROUNDS).contains(&round) {
            return Err(format!("round {round} is out of range"));
        }
        if self.auto.as_ref().is_some_and(|auto| !auto.is_possible(ranks, round)) {
            return Err("what it says about quorums is out of range".to_owned());
        }
        let element: Dtype = self.element.parse().map_err(|problem| format!("{problem}"))?;
        let elements = lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
        let bytes = elements.and_then(|elements| elements.checked_mul(element.size()));
        let bytes = bytes.filter(|&bytes| bytes <= isize::MAX as usize).ok_or("more elements than can be addressed")?;
        if model.is_some_and(|model| model != bytes as u64) {
            let model = model.unwrap_or(0);
            return Err(format!("a model of {model} bytes does not fit tensors of {bytes} bytes together"));
        }
        if self.little_endian != cfg!(target_endian = "little") {
            return Err("it comes from a machine with another order of bytes".to_owned());
        }
        Ok(())
    }
}

/// Reads a line including its end. A line that is too long is an error.
fn read_line(from: &mut impl Read) -> std::result::Result<Vec<u8>, String> {
    let mut line = Vec::new();
    while (line.len() as u64) < MOST_HEADER {
        let mut byte = [0];
        match from.read_exact(&mut byte) {
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => break,
            read => read.map_err(unreadable)?,
        }
        line.push(byte[0]);
        match byte[0] {
            b'\n' => return Ok(line),
            // Does not read another kind of file to its end.
            first if line.len() == 1 && first != b'{' => break,
            _ => {}
        }
    }
    Err("this is not a checkpoint: it does not begin with a line that says so".to_owned())
}

fn unreadable(cause: io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::UnexpectedEof => "the end is missing; the file is cut off".to_owned(),
        _ => format!("it cannot be read: {cause}"),
    }
}

/// Returns a digest of what all ranks know about a round.
fn digest_of(cut: &Cut) -> u64 {
    let part = |part: Part| match part {
        Part::Carried => 0,
        Part::Fresh => 1,
        Part::Leaving => 2,
    };
    let entries = cut
        .entries()
        .flat_map(|entry| [u64::from(entry.rank) << 2 | part(entry.part), entry.age, u64::from(entry.weight)]);
    digest(std::iter::once(cut.round()).chain(entries))
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use proptest::prelude::*;

    use super::super::core::{Entry, Particulars};
    use super::*;

    fn sample(model: Option<&[f32]>) -> Checkpoint {
        let entries = (0..3).map(|rank| Entry::new(rank, Part::Fresh, (0, Particulars::PLAIN), 0)).collect();
        let cut = Cut::of_entries(12, Some(1), entries);
        Checkpoint::new((1, 3), 77, &cut, (Dtype::F32, &[2, 1]), model.map(bytemuck::cast_slice), None)
    }

    fn written(checkpoint: &Checkpoint) -> Vec<u8> {
        let mut bytes = Vec::new();
        checkpoint.write_to(&mut bytes).unwrap();
        bytes
    }

    fn problem(bytes: &[u8]) -> String {
        Checkpoint::read_from(bytes).unwrap_err().to_string()
    }

    #[test]
    fn a_checkpoint_is_read_as_it_was_written_and_nothing_behind_it() {
        for model in [None, Some(&[1.0, -0.0, f32::NAN][..])] {
            let checkpoint = sample(model);
            let bytes = [written(&checkpoint), b"more".to_vec()].concat();
            let mut rest = &bytes[..];
            let copy = Checkpoint::read_from(&mut rest).unwrap();
            assert_eq!((&copy, rest), (&checkpoint, &b"more"[..]));
            assert_eq!((copy.rank(), copy.ranks(), copy.round(), copy.name()), (1, 3, 12, checkpoint.name()));
            let bits = |model: Vec<f32>| model.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(copy.model::<f32>().map(bits), model.map(|model| bits(model.to_vec())));
            assert_eq!(copy.model::<f64>(), None);
        }
    }

    #[test]
    fn other_rounds_runs_and_cuts_have_other_names() {
        let of = |run, round, age| {
            let cut = Cut::of_entries(round, None, vec![Entry::new(0, Part::Carried, (age, Particulars::PLAIN), 0)]);
            Checkpoint::new((0, 1), run, &cut, (Dtype::U64, &[1]), None, None).name()
        };
        let names = [of(1, 9, 1), of(2, 9, 1), of(1, 8, 1), of(1, 9, 2)];
        assert!((1..4).all(|at| !names[..at].contains(&names[at])), "{names:?}");
    }

    #[test]
    fn what_does_not_fit_is_named_with_both_values() {
        let checkpoint = sample(None);
        let differs = |place, dtype, lengths: &[usize]| checkpoint.difference(place, (dtype, lengths)).unwrap();
        assert_eq!(checkpoint.difference((1, 3), (Dtype::F32, &[2, 1])), None);
        for (text, words) in [
            (differs((1, 4), Dtype::F32, &[2, 1]), ["3 ranks", "has 4"]),
            (differs((2, 3), Dtype::F32, &[2, 1]), ["rank 1", "rank 2"]),
            (differs((1, 3), Dtype::F64, &[2, 1]), ["f32", "f64"]),
            (differs((1, 3), Dtype::F32, &[2, 2]), ["tensor 1 is 1 elements", "2 elements"]),
            (differs((1, 3), Dtype::F32, &[2]), ["tensor 1 is 1 elements", "missing"]),
        ] {
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }

    /// A header with a change, a model of `model` bytes, and the checksum that belongs to them.
    fn forged(from: &str, to: &str, model: usize) -> Vec<u8> {
        let header = serde_json::to_string(&sample(Some(&[0.0; 3])).header).unwrap();
        assert!(header.contains(from), "{header}");
        let mut bytes = [header.replace(from, to).as_bytes(), b"\n", &vec![0; model]].concat();
        let checksum = Sha256::digest(&bytes);
        bytes.extend(checksum);
        bytes
    }

    #[test]
    fn what_is_no_checkpoint_is_refused_with_the_reason() {
        assert!(Checkpoint::read_from(&forged("77", "78", 12)[..]).is_ok());
        let huge = u64::MAX.to_string();
        for (bytes, words) in [
            (b"".to_vec(), "not a checkpoint"),
            (b"\n".to_vec(), "not a checkpoint"),
            (b"{}\n".to_vec(), "not a checkpoint of version 1"),
            (vec![b'{'; 65 << 20], "not a checkpoint"),
            (forged("checkpoint\":1", "checkpoint\":2", 12), "version 2"),
            (forged("\"rank\":1", "\"rank\":3", 12), "rank 3 is not in a world of 3"),
            (forged("\"round\":12", "\"round\":0", 12), "round 0 is out of range"),
            (forged("\"round\":12", &format!("\"round\":{huge}"), 12), "out of range"),
            (forged("f32", "f33", 12), "f33"),
            (forged("[2,1]", &format!("[2,{huge}]"), 12), "more elements than can be addressed"),
            (forged("[2,1]", "[2,2]", 12), "12 bytes does not fit tensors of 16"),
            (forged("\"model\":12", "\"model\":9999999999", 12), "does not fit"),
            (forged("[2,1]", "[2,1000000000000]", 12), "does not fit"),
            (forged("77", "78", 11), "the end is missing"),
            (forged("77", "78", 13), "checksum"),
            (forged("little_endian\":true", "little_endian\":false", 12), "order of bytes"),
        ] {
            let text = problem(&bytes);
            assert!(text.contains(words), "{text:?} lacks {words:?}");
        }
        // A terabyte that is only claimed takes no memory.
        let claimed =
            String::from_utf8(written(&sample(None))[..].split(|&byte| byte == b'\n').next().unwrap().to_vec());
        let claimed =
            claimed.unwrap().replace("[2,1]", "[250000000000]").replace("\"model\":null", "\"model\":1000000000000");
        assert!(problem(format!("{claimed}\nabc").as_bytes()).contains("only 3 are there"));
    }

    proptest! {
        #[test]
        fn any_change_is_noticed_and_nothing_panics(at in 0usize..300, bit in 0u8..8, cut in 0usize..300, noise: Vec<u8>) {
            let whole = written(&sample(Some(&[1.0, 2.0, 3.0])));
            let mut changed = whole.clone();
            let place = at % whole.len();
            changed[place] ^= 1 << bit;
            prop_assert!(Checkpoint::read_from(&changed[..]).is_err());
            prop_assert!(Checkpoint::read_from(&whole[..cut % whole.len()]).is_err());
            prop_assert!(Checkpoint::read_from(&noise[..]).is_err());
            let first = whole.iter().position(|&byte| byte == b'\n').unwrap();
            let _ = Checkpoint::read_from(&[&whole[..=first], &noise].concat()[..]);
        }
    }
}
