//! How `talos-ghcr-lab truth` asks a running lab: one word on a unix socket in its directory, one JSON text back.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Weak;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::cluster::Lab;

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The truth, as JSON.
    Truth,
    /// Counters start at zero again.
    ResetCounters,
}

impl Question {
    const ALL: [(Self, &'static str); 2] = [(Self::Truth, "truth"), (Self::ResetCounters, "reset-counters")];

    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(question, _)| *question == self).map_or("", |(_, word)| word)
    }
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("lab.sock")
}

/// Listens in a lab's directory.
///
/// # Errors
/// When another lab is up there (`AddrInUse`), or as bind(2); a path of a unix socket has at most 107 bytes.
pub fn listen(dir: &Path) -> io::Result<UnixListener> {
    let path = socket(dir);
    if StdStream::connect(&path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another lab is up in this directory"));
    }
    // What is left of a lab that was killed.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(path)
}

/// Answers questions as long as the lab is there.
pub async fn serve(lab: Weak<Lab>, listener: UnixListener) {
    loop {
        // A client that went away again leaves the listener well.
        let Ok((stream, _)) = listener.accept().await else { continue };
        let Some(lab) = lab.upgrade() else { return };
        tokio::spawn(async move { answer(&lab, stream).await });
    }
}

async fn answer(lab: &Lab, mut stream: UnixStream) -> io::Result<()> {
    let mut word = String::new();
    stream.read_to_string(&mut word).await?;
    let question = Question::ALL.iter().find(|(_, known)| *known == word.trim());
    let text = match question {
        Some((Question::Truth, _)) => serde_json::to_string(&lab.truth()).map_err(io::Error::other)?,
        Some((Question::ResetCounters, _)) => {
            lab.reset_counters();
            "{}".to_owned()
        }
        None => return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such question")),
    };
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

/// Asks the lab that is up in `dir`.
///
/// # Errors
/// When none is up there (`NotFound`, `ConnectionRefused`), or it closed without an answer (`UnexpectedEof`).
pub fn ask(dir: &Path, question: Question) -> io::Result<String> {
    let mut stream = StdStream::connect(socket(dir))?;
    stream.write_all(question.word().as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    if text.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(text)
}
