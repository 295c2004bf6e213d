//! The `earlybird` command.

fn main() -> std::process::ExitCode {
    earlybird::command()
}
