//! What a person at a terminal sees of a run: a real pseudo-terminal, and a screen that is drawn as a terminal draws it.

use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use lab::Held;
use lab::faults::When::Before;
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::process::{Child, Command};

use crate::harness::{Bed, LIMIT};
use crate::scene::{Gate, signal, two_workers};

/// A terminal of 30 lines and 100 columns.
struct Screen {
    keyboard: std::fs::File,
    output: Receiver<Vec<u8>>,
    parser: vt100::Parser,
    raw: Vec<u8>,
}

impl Screen {
    /// Starts a command at it.
    fn of(mut command: Command) -> (Self, Child) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("it may be used");
        tcsetwinsize(&master, Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let open = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let side = || -> Stdio { rustix::fs::open(&name, open, Mode::empty()).expect("it opens").into() };
        command.stdin(side()).stdout(side()).stderr(side()).env("TERM", "xterm-256color");
        let child = command.kill_on_drop(true).spawn().expect("the product starts");
        // The command keeps its ends of it; ours must be closed, or the end of its output is never seen.
        drop(command);
        let keyboard = std::fs::File::from(master);
        let mut reader = keyboard.try_clone().expect("a second end");
        let (send, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                if send.send(buffer[..read].to_vec()).is_err() {
                    break;
                }
            }
        });
        (Self { keyboard, output, parser: vt100::Parser::new(30, 100, 500), raw: Vec::new() }, child)
    }

    /// Its lines, without what stands behind them.
    fn text(&self) -> String {
        self.parser.screen().rows(0, 100).map(|row| row.trim_end().to_owned() + "\n").collect()
    }

    /// Takes in what comes until the screen shows it.
    async fn until(&mut self, what: &str, shows: impl Fn(&str) -> bool) -> String {
        let since = Instant::now();
        loop {
            while let Ok(bytes) = self.output.try_recv() {
                self.parser.process(&bytes);
                self.raw.extend(bytes);
                if shows(&self.text()) {
                    return self.text();
                }
            }
            assert!(since.elapsed() < LIMIT, "never seen: {what}\n{}", self.text());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What stands there when the command has ended.
    async fn end(&mut self, mut child: Child) -> (i32, String) {
        let status = tokio::time::timeout(LIMIT, child.wait()).await.expect("it ends").expect("it is ours");
        self.until("the end", |text| text.contains("Talos calls")).await;
        (status.code().unwrap_or(-1), self.text())
    }

    fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("it is there");
    }
}

fn roll(bed: &Bed, more: &[&str]) -> Command {
    bed.roll(&[&["-n", "worker-1"], more].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_asks_first_and_then_shows_a_table_below_the_lines() {
    let bed = two_workers().await;
    let mut gate = Gate::new(&bed);
    let (mut screen, child) = Screen::of(roll(&bed, &[]));
    let asked = screen.until("the question", |text| text.contains("Go on? [y/N]")).await;
    assert!(asked.contains("Plan: 1 to reboot"), "{asked}");
    assert_eq!(bed.writes(), 0, "nothing is written before the answer");
    screen.types("y\n");

    let intent = gate.hold_fence(Before, "worker-1", Some("claimed")).await;
    let shown = screen.until("the reboot's row", |text| text.lines().any(|line| line.starts_with("worker-1   reboot")));
    let shown = shown.await;
    let head = shown.lines().position(|line| line.starts_with("NODE       STEP")).expect("the head");
    let last = shown.lines().position(|line| line.contains("drained: ")).expect("the lines");
    assert!(last < head, "the table is below the lines: {shown}");
    intent.release();
    drop(gate);
    screen.until("what is waited for", |text| text.contains("waiting for its boot") && text.contains("14m")).await;

    let (code, end) = screen.end(child).await;
    assert_eq!(code, 0, "{end}");
    assert!(end.contains("proof written") && end.contains("Rebooted: worker-1"), "{end}");
    assert!(!end.contains("NODE       STEP"), "the table is gone: {end}");
    let node = bed.truth_of("worker-1");
    assert_eq!((node.cri_loaded, node.boots), (Held::New, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_is_an_answer_and_changes_nothing() {
    let bed = two_workers().await;
    let (mut screen, child) = Screen::of(roll(&bed, &[]));
    screen.until("the question", |text| text.contains("Go on? [y/N]")).await;
    screen.types("n\n");
    let (code, end) = screen.end(child).await;
    assert_eq!((code, bed.writes()), (4, 0), "{end}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p07_ctrl_c_at_a_terminal_gives_back_and_takes_the_table_away() {
    let bed = two_workers().await;
    let mut gate = Gate::new(&bed);
    let (mut screen, child) = Screen::of(roll(&bed, &["--yes"]));
    let intent = gate.hold_fence(Before, "worker-1", Some("claimed")).await;
    screen.until("the table", |text| text.contains("NODE       STEP")).await;
    signal(&child, Signal::INT);
    screen.until("the answer to it", |text| text.contains("stopping: no new step")).await;
    intent.release();
    drop(gate);
    let (code, end) = screen.end(child).await;
    assert_eq!(code, 130, "{end}");
    assert!(!end.contains("NODE       STEP"), "{end}");
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cordoned, node.fence), (0, false, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p04_colour_is_for_terminals_unless_a_person_says_otherwise() {
    let bed = two_workers().await;
    let (mut screen, child) = Screen::of(bed.command("plan", &["-n", "worker-1"]));
    screen.until("the plan", |text| text.contains("Plan: ")).await;
    drop(child);
    let shown = String::from_utf8_lossy(&screen.raw).into_owned();
    assert!(shown.contains("\u{1b}[33mDrifted"), "yellow");
    // The table has no line that this terminal breaks: what has no room stands below its row.
    let plain = anstream::adapter::strip_str(&shown).to_string();
    let table: Vec<&str> = plain.lines().map(str::trim_end).take_while(|line| !line.is_empty()).collect();
    assert!(table.len() > 3 && table.iter().all(|line| line.chars().count() <= 100), "{table:#?}");
    assert!(table.iter().any(|line| line.starts_with("        stage > pull > ")), "{table:#?}");

    let mut plain = bed.command("plan", &["-n", "worker-1"]);
    plain.env("NO_COLOR", "1");
    let (mut screen, child) = Screen::of(plain);
    screen.until("the plan", |text| text.contains("Plan: ")).await;
    drop(child);
    assert!(!String::from_utf8_lossy(&screen.raw).contains('\u{1b}'), "NO_COLOR");

    let mut forced = bed.command("plan", &["-n", "worker-1"]);
    forced.env("CLICOLOR_FORCE", "1");
    let forced = crate::harness::finish(forced).await.expect(0);
    assert!(forced.stdout.contains("\u{1b}[33mDrifted"), "{:?}", forced.stdout);
    let stripped = anstream::adapter::strip_str(&forced.stdout).to_string();
    assert_eq!(stripped, bed.product("plan", &["-n", "worker-1"]).await.expect(0).stdout);
}
