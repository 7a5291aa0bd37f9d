//! `talos-ghcr completions` and `talos-ghcr man`: made from the flags, so that they never lag behind.

use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::args::{Cli, CompletionsArgs, ManArgs};
use super::fail;
use crate::exit::Exit;
use crate::report;

/// Why there is no manual.
#[derive(Debug, thiserror::Error)]
enum ManError {
    /// The folder.
    #[error("{} cannot be made; name a folder that you may write to", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A page.
    #[error("{} cannot be written", path.display())]
    Page {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

pub(super) fn completions(args: &CompletionsArgs) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "talos-ghcr", &mut script);
    // The script for bash names a state of a program with a hyphen in one way and looks for it in another
    // (clap-rs/clap#6421), so that no flag of any command is completed. Does nothing once that is mended.
    let script = String::from_utf8_lossy(&script).replace("talos__subcmd__ghcr", "talos__ghcr");
    report::print(&script);
    Exit::Done
}

pub(super) fn man(args: &ManArgs) -> Exit {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let Some(folder) = &args.folder else {
        report::print(&page(&root));
        return Exit::Done;
    };
    match pages(&root, folder) {
        Ok(()) => Exit::Done,
        Err(error) => fail(Exit::Failed, &error),
    }
}

/// A page for the program and one for each command.
fn pages(root: &clap::Command, folder: &Path) -> Result<(), ManError> {
    std::fs::create_dir_all(folder).map_err(|source| ManError::Folder { path: folder.to_owned(), source })?;
    for command in std::iter::once(root).chain(root.get_subcommands()) {
        let path = folder.join(format!("{}.1", command.get_display_name().unwrap_or("talos-ghcr")));
        std::fs::write(&path, page(command)).map_err(|source| ManError::Page { path, source })?;
    }
    Ok(())
}

/// What clap knows of the command, and the exit codes.
fn page(command: &clap::Command) -> String {
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = Man::new(command.clone()).render(&mut text);
    let mut codes = Roff::new();
    codes.control("SH", ["EXIT STATUS"]);
    let all = [
        Exit::Done,
        Exit::Failed,
        Exit::Differs,
        Exit::Refused,
        Exit::Stopped,
        Exit::ControlLost,
        Exit::Usage,
        Exit::Signal(2),
        Exit::Signal(15),
    ];
    for exit in all {
        codes.control("TP", []);
        codes.text([bold(exit.code().to_string())]);
        codes.text([roman(exit.meaning())]);
    }
    // Without the preamble, which the page has already.
    let codes = codes.render();
    let codes = codes.find(".SH").map_or("", |begin| &codes[begin..]);
    String::from_utf8_lossy(&text).into_owned() + codes
}
