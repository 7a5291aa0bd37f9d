//! A real Chromium, headless, told what to do over the pipe of its DevTools protocol
//! (chromedevtools.github.io/devtools-protocol): messages of JSON that end with a NUL, on file descriptors 3 and 4.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::harness::LIMIT;

/// What Chromium is called where it is installed.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"];

/// A shell puts the pipes where Chromium looks for them; what it says on stdout and stderr is not for us.
const START: &str = r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#;

/// How wide a page is shown, and whether its reader prefers dark.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub width: u32,
    pub scheme: &'static str,
}

/// The first line of each connection to a proxy.
type Asked = Arc<Mutex<Vec<String>>>;

/// A proxy that notes what it is asked for and hangs up; its address, and the notes.
async fn proxy() -> (String, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("it is bound"));
    let asked = Asked::default();
    let notes = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let mut line = String::new();
            let _ = BufReader::new(connection).read_line(&mut line).await;
            notes.lock().expect("nobody panics with it").push(line.trim().to_owned());
        }
    });
    (address, asked)
}

/// A browser with one tab. Whatever that would fetch from anywhere goes to a proxy that only notes it.
pub struct Browser {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: Option<String>,
    last: u64,
    /// What it told by itself, since a page was opened.
    events: Vec<Value>,
    asked: Asked,
    _profile: tempfile::TempDir,
}

/// The program: `CHROMIUM`, or one of the usual names on the path.
fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("CHROMIUM").filter(|named| !named.is_empty()) {
        return named.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).flat_map(|folder| NAMES.map(|name| folder.join(name)));
    places.into_iter().find(|place| place.is_file()).unwrap_or_else(|| {
        panic!("no Chromium is installed: looked for {} on the path (CHROMIUM=... names another)", NAMES.join(", "))
    })
}

impl Browser {
    pub async fn start() -> Self {
        let profile = tempfile::tempdir().expect("a temporary folder");
        let (proxy, asked) = proxy().await;
        let mut command = Command::new("sh");
        command.args(["-c", START, "sh"]).arg(program()).args(["--headless=new", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        // What Chromium asks of its makers for itself ends here, at a port where nobody listens.
        command.args(["--proxy-server=http://127.0.0.1:9", "--proxy-bypass-list=<-loopback>", "--no-first-run"]);
        command.args(["--disable-background-networking", "--disable-component-update", "--disable-gpu"]);
        // Containers have a small /dev/shm, and root has no sandbox; what is shown is our own.
        command.arg("--disable-dev-shm-usage");
        if rustix::process::geteuid().is_root() {
            command.arg("--no-sandbox");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().expect("a shell starts");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let output = BufReader::new(output);
        let mut browser =
            Self { child, input, output, session: None, last: 0, events: Vec::new(), asked, _profile: profile };
        // The tab has a proxy of its own, past which it asks not even this machine.
        let context = json!({"proxyServer": proxy, "proxyBypassList": "<-loopback>"});
        let context = browser.call("Target.createBrowserContext", context).await;
        let tab = json!({"url": "about:blank", "browserContextId": context["browserContextId"]});
        let target = browser.call("Target.createTarget", tab).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach).await;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Network", "Log", "Runtime"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        browser
    }

    /// Opens a file and waits until it is shown.
    pub async fn open(&mut self, file: &Path, view: View) {
        let metrics = json!({"width": view.width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": view.scheme}]});
        self.call("Emulation.setEmulatedMedia", scheme).await;
        self.events.clear();
        self.call("Page.navigate", json!({"url": format!("file://{}", file.display())})).await;
        while !self.told("Page.loadEventFired") {
            let message = self.message().await;
            self.events.push(message);
        }
    }

    /// The value of an expression in the page.
    pub async fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", asked).await;
        assert!(answer.get("exceptionDetails").is_none(), "{answer:#}");
        answer["result"]["value"].clone()
    }

    /// The whole page as a PNG.
    pub async fn picture(&mut self) -> Vec<u8> {
        let answer = self.call("Page.captureScreenshot", json!({"captureBeyondViewport": true})).await;
        STANDARD.decode(answer["data"].as_str().expect("a picture")).expect("base64")
    }

    /// The URLs that were asked for since the page was opened.
    pub fn requests(&self) -> Vec<&str> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str()).collect()
    }

    /// What the page was told to be wrong, such as what its own policy forbids.
    pub fn problems(&self) -> Vec<&Value> {
        let wrong =
            |event: &&Value| event["method"] == "Log.entryAdded" || event["method"] == "Runtime.exceptionThrown";
        self.events.iter().filter(wrong).map(|event| &event["params"]).collect()
    }

    /// What has reached the proxy so far: the first line of each connection.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("nobody panics with it").clone()
    }

    /// Ends it.
    pub async fn close(mut self) {
        self.call("Browser.close", json!({})).await;
        let _ = tokio::time::timeout(LIMIT, self.child.wait()).await;
    }

    fn told(&self, method: &str) -> bool {
        self.events.iter().any(|event| event["method"] == method)
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = self.session.as_ref().filter(|_| !method.starts_with("Browser.")) {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).await.expect("Chromium listens");
        loop {
            let answer = self.message().await;
            if answer["id"] != self.last {
                self.events.push(answer);
                continue;
            }
            assert!(answer.get("error").is_none(), "{method}: {answer}");
            return answer["result"].clone();
        }
    }

    async fn message(&mut self) -> Value {
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(LIMIT, self.output.read_until(0, &mut bytes)).await;
        read.expect("Chromium answers in time").expect("Chromium can be read");
        assert_eq!(bytes.pop(), Some(0), "Chromium ended: {}", program().display());
        serde_json::from_slice(&bytes).expect("JSON")
    }
}
