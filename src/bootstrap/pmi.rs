//! The conversation of a process with a launcher that speaks PMI-1, as MPICH's Hydra and its relatives do: over an inherited
//! socket, of which `PMI_FD` has the number, each side sends lines of words `key=value`. MPICH documents the lines by its own
//! client (`src/pmi/`).
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};

/// The maximum length of a line.
const MOST_LINE: usize = 1 << 14;

/// Whether MPI has this conversation, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// MPI has begun the conversation and will end it.
    Mpi,
    /// This process has no MPI. A launcher takes a process that has said something, and exits without ending the
    /// conversation, for one that crashed.
    This,
}

/// Gives the text of rank 0 to all ranks of the job: rank 0 puts `mine`, all meet, and the others get it. A text has no white
/// space. Blocks until all ranks have come.
///
/// # Errors
/// The launcher answers in another way, or not at all.
pub(super) fn share(launcher: impl Read + Write, owner: Owner, key: &str, mine: Option<&str>) -> io::Result<String> {
    let mut session = Session { launcher, heard: Vec::new() };
    if owner == Owner::This {
        session.ask("init pmi_version=1 pmi_subversion=1", "response_to_init")?;
    }
    let names = session.ask("get_my_kvsname", "my_kvsname")?;
    let space = word(&names, "kvsname").ok_or_else(|| strange(&names))?.to_owned();
    if let Some(text) = mine {
        session.ask(&format!("put kvsname={space} key={key} value={text}"), "put_result")?;
    }
    session.ask("barrier_in", "barrier_out")?;
    let text = match mine {
        Some(text) => text.to_owned(),
        None => {
            let got = session.ask(&format!("get kvsname={space} key={key}"), "get_result")?;
            word(&got, "value").ok_or_else(|| strange(&got))?.to_owned()
        }
    };
    if owner == Owner::This {
        session.ask("finalize", "finalize_ack")?;
    }
    Ok(text)
}

struct Session<L> {
    launcher: L,
    /// What came after the last line.
    heard: Vec<u8>,
}

impl<L: Read + Write> Session<L> {
    /// Sends a command, and returns the answer.
    fn ask(&mut self, command: &str, answer: &str) -> io::Result<String> {
        self.launcher.write_all(format!("cmd={command}\n").as_bytes())?;
        let line = self.line()?;
        let is_fine = word(&line, "cmd") == Some(answer) && word(&line, "rc").is_none_or(|code| code == "0");
        if is_fine { Ok(line) } else { Err(strange(&line)) }
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.heard.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.heard.len() > MOST_LINE {
                return Err(strange(&String::from_utf8_lossy(&self.heard[..80])));
            }
            let mut more = [0; 1024];
            match self.launcher.read(&mut more) {
                Ok(0) => return Err(ended()),
                Ok(len) => self.heard.extend_from_slice(&more[..len]),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
    }
}

/// Returns the value of a word of a line.
fn word<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Returns the error for an unexpected line. It does not show values, because one may have a secret.
fn strange(line: &str) -> io::Error {
    let shown = ["cmd", "rc", "msg"].iter().filter_map(|key| Some(format!("{key}={:?}", word(line, key)?)));
    let shown: Vec<String> = shown.collect();
    io::Error::other(format!("it answered in another way than PMI-1 has it ({})", shown.join(" ")))
}

fn ended() -> io::Error {
    io::Error::other(
        "it has ended its conversation with this process: a program that the rank ran before this one may have used it",
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// What a rank says to a launcher that gives these answers, and what it gets.
    fn talk(answers: &[&str], owner: Owner, mine: Option<&str>) -> (Vec<String>, io::Result<String>) {
        let (ours, mut launcher) = UnixStream::pair().unwrap();
        launcher.write_all(answers.concat().as_bytes()).unwrap();
        launcher.shutdown(std::net::Shutdown::Write).unwrap();
        let got = share(ours, owner, "k", mine);
        // What was said is there, even if the other end has left something unread, which ends in an error.
        let mut said = String::new();
        let _ = launcher.read_to_string(&mut said);
        (said.lines().map(str::to_owned).collect(), got)
    }

    #[test]
    fn lines_are_those_of_pmi_1() {
        let init = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
        let (name, out, ack) = ("cmd=my_kvsname kvsname=s_0\n", "cmd=barrier_out\n", "cmd=finalize_ack\n");
        let put = "cmd=put_result rc=0 msg=success\n";
        let got = "cmd=get_result rc=0 msg=success value=1/2:3\n";
        let (said, text) = talk(&[init, name, put, out, ack], Owner::This, Some("1/2:3"));
        assert_eq!(text.unwrap(), "1/2:3");
        assert_eq!(said[0], "cmd=init pmi_version=1 pmi_subversion=1");
        assert_eq!(said[2..], ["cmd=put kvsname=s_0 key=k value=1/2:3", "cmd=barrier_in", "cmd=finalize"]);
        // MPI's conversation is neither begun nor ended.
        let (said, text) = talk(&[name, out, got], Owner::Mpi, None);
        assert_eq!(text.unwrap(), "1/2:3");
        assert_eq!(said, ["cmd=get_my_kvsname", "cmd=barrier_in", "cmd=get kvsname=s_0 key=k"]);
    }

    #[test]
    fn other_answers_are_errors() {
        let name = "cmd=my_kvsname kvsname=s_0\n";
        for (answers, named) in [
            (&["cmd=my_kvsname\n"][..], "my_kvsname"),
            (&["cmd=other rc=0\n"], "other"),
            (&[name, "cmd=barrier_out\n", "cmd=get_result rc=-1 msg=key_not_found\n"], "key_not_found"),
            (&[name, "cmd=barrier_out"], "ended its conversation"),
            (&["\u{0}\u{ff}\n"], "answered"),
            (&[name, "cmd=get_result rc=0 msg=success value=secret\n"], "cmd=\"get_result\""),
        ] {
            let (_, got) = talk(answers, Owner::Mpi, None);
            let error = got.unwrap_err().to_string();
            assert!(error.contains(named) && !error.contains("secret"), "{error}");
        }
        let endless = "x".repeat(2 * MOST_LINE);
        assert!(talk(&[&endless], Owner::Mpi, None).1.is_err());
    }
}
