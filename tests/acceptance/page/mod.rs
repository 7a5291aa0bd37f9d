//! The page of `--report FILE.html` in a real browser: `make test-page`.

use std::path::{Path, PathBuf};

use coordinator::report::page;
use coordinator::report::run_report::{PhaseRow, RenewalRow, ReportDocument, SpanRow, StepRow};
use coordinator::trace::{Outcome, Phase};
use serde_json::json;

use self::browser::{Browser, View};
use crate::harness::{Bed, read};
use crate::scene::block_evictions;

mod browser;

const LOOK: &str = include_str!("look.js");
const VIEWS: [View; 4] = [
    View { width: 1280, scheme: "light" },
    View { width: 1280, scheme: "dark" },
    View { width: 400, scheme: "light" },
    View { width: 400, scheme: "dark" },
];

/// Where the pages and their pictures are left, for whoever wants to see them.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    folder
}

fn span(offset_seconds: f64, seconds: f64) -> SpanRow {
    SpanRow { at: "2026-11-30T08:00:00.000Z".to_owned(), offset_seconds, seconds }
}

/// A roll of two hundred workers, one after the other, of which one cannot be drained.
fn fleet() -> ReportDocument {
    let turn =
        [("Stage", 0.2), ("CheckPull", 1.0), ("Claim", 0.3), ("Drain", 12.0), ("Reboot", 0.1), ("AwaitBoot", 46.0)];
    let rest = [("AwaitReady", 5.0), ("Release", 0.2), ("WriteProof", 0.4)];
    let (mut steps, mut offset) = (Vec::new(), 3.0);
    for node in 1..=200 {
        for (step, seconds) in turn.into_iter().chain(rest) {
            let failed = node == 150 && step == "Drain";
            steps.push(StepRow {
                node: format!("worker-{node}.a-long-domain.example.com"),
                role: "worker",
                step,
                span: span(offset, seconds),
                look_seconds: 0.1,
                tries: 1,
                outcome: if failed { Outcome::Failed } else { Outcome::Done },
                why: failed.then(|| "the disruption budget default/web never allowed it ".repeat(4)),
            });
            offset += seconds;
        }
    }
    let renewals = (1..=400).map(|index| RenewalRow {
        span: span(f64::from(index) * 30.0, 0.1),
        renewed: index != 200,
        why: (index == 200).then(|| "no API server could be connected to".to_owned()),
    });
    ReportDocument {
        schema_version: 1,
        kind: "Report",
        version: "0.1.0",
        started: "2026-11-30T08:00:00.000Z".to_owned(),
        ended: "2026-11-30T11:37:20.000Z".to_owned(),
        seconds: offset,
        result: "failed, or something is left that a human must see".to_owned(),
        exit_code: 1,
        phases: vec![PhaseRow { phase: Phase::Workers, seconds: offset - 3.0, spans: vec![span(3.0, offset - 3.0)] }],
        steps,
        renewals: renewals.collect(),
        outages: Vec::new(),
        nodes: Vec::new(),
        run: None,
    }
}

/// Looks at a page as its readers do; gives the number of bars.
async fn look_at(browser: &mut Browser, file: &Path) -> u64 {
    let mut bars = 0;
    for view in VIEWS {
        browser.open(file, view).await;
        let seen = browser.evaluate(LOOK).await;
        let what = format!("{} {view:?}: {seen:#}", file.display());
        assert!(seen["width"].as_u64().unwrap() <= u64::from(view.width), "the page scrolls sideways: {what}");
        assert_eq!(seen["light"], view.scheme == "light", "{what}");
        assert_eq!(seen["faint"], json!([]), "too faint to be read: {what}");
        assert!(seen["texts"].as_u64().unwrap() > 50, "{what}");
        assert_eq!(seen["strayBars"], 0, "{what}");
        assert_eq!(seen["timelineScrolls"], view.width == 400, "{what}");
        assert!(seen["boxHeight"].as_u64().unwrap() < 900, "the axis and the lease stay in sight: {what}");
        assert!(seen["title"].as_str().unwrap().starts_with("talos-ghcr run: "), "{what}");
        assert_eq!((&seen["headings"][0], &seen["headings"][1]), (&json!("H1"), &json!("H2")), "{what}");
        assert_eq!((&seen["unnamed"], &seen["headless"], &seen["ids"]), (&json!(0), &json!(0), &json!(0)), "{what}");
        assert_eq!(browser.problems(), Vec::<&serde_json::Value>::new(), "{what}");
        assert_eq!(browser.requests(), [format!("file://{}", file.display())], "only itself is asked for");
        bars = seen["bars"].as_u64().unwrap();
        let picture = file.with_file_name(format!(
            "{}-{}-{}.png",
            file.file_stem().unwrap().to_string_lossy(),
            view.width,
            view.scheme
        ));
        let png = browser.picture().await;
        assert!(png.len() > 20_000, "a page with so much on it is no small picture: {}", png.len());
        std::fs::write(picture, png).expect("the target folder can be written");
    }
    assert_eq!(browser.asked(), Vec::<String>::new(), "something was fetched");
    bars
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Chromium: make test-page"]
async fn the_page_is_readable_on_a_desk_and_on_a_phone_by_day_and_by_night_and_asks_nobody() {
    let mut browser = Browser::start().await;
    // A roll in which a node cannot be drained at first.
    let bed = Bed::new(|options| options.talos = vec!["1.13.9=5".parse().unwrap(), "1.14.0=1".parse().unwrap()]).await;
    for (name, code, blocked) in [("failed", 4, true), ("done", 0, false)] {
        block_evictions(&bed, blocked);
        let file = folder().join(format!("{name}.html"));
        bed.run(&["--drain-timeout", "2s", "--report", &file.display().to_string()]).await.expect(code);
        // A page that was left from before would prove nothing.
        assert!(read(&file).contains(&format!("<dd>{code}</dd>")));
        assert!(look_at(&mut browser, &file).await > 20, "{name}");
    }
    let file = folder().join("fleet.html");
    std::fs::write(&file, page::text(&fleet())).unwrap();
    assert!(look_at(&mut browser, &file).await > 200 * 9, "a bar for each step");
    // The wide scale is wide in its own box.
    for view in VIEWS {
        browser.open(&file, view).await;
        browser.evaluate("document.getElementById('wide').click()").await;
        let seen = browser.evaluate(LOOK).await;
        assert!(
            seen["timelineScrolls"] == true && seen["width"].as_u64() <= Some(view.width.into()),
            "{view:?}: {seen:#}"
        );
    }
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Chromium: make test-page"]
async fn the_look_at_a_page_finds_what_it_looks_for() {
    let mut browser = Browser::start().await;
    let file = folder().join("wrong.html");
    let page = page::text(&fleet());
    let show = |from: &str, to: &str| {
        assert!(page.contains(from));
        std::fs::write(&file, page.replacen(from, to, 1)).unwrap();
    };
    let narrow = VIEWS[2];
    show("<footer>", "<p style=\"width:500px;color:#aaa\">too wide and too faint</p><footer>");
    browser.open(&file, narrow).await;
    let seen = browser.evaluate(LOOK).await;
    assert!(seen["width"].as_u64() > Some(400) && seen["faint"][0][0] == "P: too wide and too faint", "{seen:#}");
    // Its own policy stops a picture from elsewhere, and says so; without the policy it is asked for.
    show("<footer>", "<img src=\"http://example.com/picture\" alt=\"\"><footer>");
    browser.open(&file, narrow).await;
    assert_ne!(browser.problems(), Vec::<&serde_json::Value>::new());
    assert_eq!(browser.asked(), Vec::<String>::new());
    show(
        "<meta http-equiv=\"Content-Security-Policy\"",
        "<img src=\"http://example.com/picture\" alt=\"\"><meta name=\"none\"",
    );
    browser.open(&file, narrow).await;
    assert_eq!(browser.requests().last(), Some(&"http://example.com/picture"));
    assert_eq!(browser.asked(), ["GET http://example.com/picture HTTP/1.1"]);
    std::fs::remove_file(&file).unwrap();
    browser.close().await;
}
