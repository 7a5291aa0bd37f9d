//! The figures that are promised, counted by the lab's servers, and P06: no secret anywhere.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use lab::Held;
use lab::cluster::USER;
use lab::kube::kind::Kind;
use lab::talos::log::Entry;
use serde_json::{Value, json};

use crate::harness::{Bed, ended, finish, lease_duration, read};
use crate::scene::{Gate, two_workers};

/// The annotation that carries our fence.
const FENCE: &str = "/metadata/annotations/talos-ghcr~1fence";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_nothing_to_do_is_sixty_talos_calls_five_kubernetes_requests_and_no_write() {
    let bed = Bed::proved(|_| {}).await;
    let run = bed.product_with_old("run", &["-o", "json"]).await.expect(0).json();
    let truth = bed.lab.truth();
    let (talos, kubernetes) = (truth.total("talos/"), truth.total("kubernetes/"));
    assert_eq!(run["result"], "nothing-to-do");
    assert_eq!((talos.writes, kubernetes.writes, truth.total("registry").reads), (0, 0, 0));
    assert!(talos.reads <= 60, "{} Talos calls: {:#?}", talos.reads, talos.by_method);
    assert!(kubernetes.reads <= 5, "{} Kubernetes requests: {:#?}", kubernetes.reads, kubernetes.by_method);
    // What the product says of itself is what the servers have counted.
    assert_eq!(
        (&run["requests"]["talos"], &run["requests"]["kubernetes"]),
        (&talos.reads.into(), &kubernetes.reads.into())
    );
    // Only the API server of the kubeconfig is dialled by a run that writes nothing.
    for other in ["kubernetes/cp-2", "kubernetes/cp-3"] {
        assert_eq!(truth.counters[other].reads, 0, "{other}");
    }
}

/// How often a write moved our fence or the cordon of a Node: its content is what counts, for a patch that lost a race
/// changes nothing and is sent again.
fn fence_changes(bed: &Bed, node: &str, since: u64) -> usize {
    let store = bed.lab.objects();
    let events = store.node_events(since);
    let of = |object: &Value| (object.pointer(FENCE).cloned(), object["spec"]["unschedulable"] == true);
    let moved = events.iter().filter(|event| {
        event.object["metadata"]["name"] == node
            && event.before.as_ref().is_some_and(|before| of(before) != of(&event.object))
    });
    moved.count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_a_rolled_reboot_node_costs_at_most_three_node_patches() {
    let bed = Bed::default().await;
    let version = bed.lab.objects().version();
    bed.lab.reset_counters();
    bed.run(&["-n", "worker-1"]).await.expect(0);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.cri_loaded, node.boots, node.cordoned, &node.fence), (Held::New, 1, false, &None));
    // Claim, intent, release. Counted twice: changes of fence or cordon in the store, and requests sent. A request that
    // lost a race against a heartbeat or against Talos's own annotations is sent again; each such one changed nothing.
    let changes = fence_changes(&bed, "worker-1", version);
    assert_eq!(changes, 3, "claim, intent to reboot, release");
    let patches = |entry: &&Entry| entry.method == "PATCH nodes";
    let sent: Vec<_> = bed.lab.log().writes().into_iter().filter(|entry| patches(&entry)).collect();
    assert!(sent.iter().all(|entry| entry.target.contains("worker-1")), "no other Node is patched: {sent:#?}");
    assert!(sent.len() >= changes, "what changed was asked for");
    assert!(sent.len() <= 2 * changes, "{} patches for {changes} changes: {sent:#?}", sent.len());
}

/// Every form in which a secret of the lab may show itself: plain, percent-encoded is the same, and base64 of it alone
/// and behind the user, at each of the three offsets at which it can stand in a longer text.
fn forms(bed: &Bed) -> Vec<String> {
    let mut forms = Vec::new();
    for password in [bed.lab.old_password(), bed.lab.new_password()] {
        forms.push(password.to_owned());
        forms.push(STANDARD.encode(format!("{USER}:{password}")).trim_end_matches('=').to_owned());
        for offset in 0..3 {
            let shifted = [vec![b' '; offset], password.as_bytes().to_vec()].concat();
            for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
                // The first and the last characters depend on what stands around it.
                let encoded = engine.encode(&shifted);
                forms.push(encoded[4..encoded.len() - 4].to_owned());
            }
        }
        forms.push(password.bytes().map(|byte| format!("{byte:02x}")).collect());
        let numbers: Vec<String> = password.bytes().map(|byte| byte.to_string()).collect();
        forms.push(numbers.join(", "));
    }
    // What opens the cluster, from the product's own files and from a machine config.
    let line = |text: String, key: &str| {
        let found = text.lines().find_map(|line| line.trim().strip_prefix(key).map(str::to_owned));
        let value = found.unwrap_or_else(|| panic!("a line of {key}"));
        value.split_whitespace().next().unwrap_or_default().to_owned()
    };
    for (file, key) in [("talosconfig", "key:"), ("kubeconfig", "client-key-data:")] {
        let encoded = line(read(&bed.lab.dir().join(file)), key);
        let pem = String::from_utf8(STANDARD.decode(&encoded).expect("base64")).expect("PEM");
        forms.push(pem.lines().nth(1).expect("the key itself").to_owned());
        forms.push(encoded);
    }
    forms.push(line(bed.config("cp-1"), "secret:"));
    forms.push(line(bed.config("cp-1"), "token:"));
    assert!(forms.iter().all(|form| form.len() > 15), "no form is found by chance");
    forms
}

/// A bearer token of the registry, which opens it for some minutes.
fn bearer(text: &str) -> Option<&str> {
    let tokens = text.match_indices("Bearer ").map(|(at, word)| &text[at + word.len()..]);
    tokens.filter_map(|rest| rest.get(..32)).find(|token| token.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Where one of the forms stands, with a little of what is around it.
fn leak(forms: &[String], text: &str) -> Option<String> {
    let (form, at) = forms.iter().find_map(|form| Some((form, text.find(form.as_str())?)))?;
    let line = text[..at].rfind('\n').map_or(0, |at| at + 1);
    Some(format!("…{}<secret {form}>", &text[line.max(at.saturating_sub(300))..at]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p06_no_secret_is_in_any_output_log_annotation_lease_or_argument() {
    let bed = Bed::new(|options| options.talos = vec!["1.13.9=5".parse().unwrap(), "1.14.0=1".parse().unwrap()]).await;
    let forms = forms(&bed);
    let traced = |more: &[&str]| {
        let mut roll = bed.roll(more);
        roll.env("TALOS_GHCR_LOG", "trace");
        roll
    };
    // A roll, through every step and of both kinds of node, with everything logged.
    let report = bed.lab.dir().join("report.json");
    let child = traced(&["-n", "worker-1,worker-3", "--report", &report.display().to_string()])
        .spawn()
        .expect("the product starts");
    let process = format!("/proc/{}", child.id().expect("it runs"));
    let [arguments, environment] =
        ["cmdline", "environ"].map(|file| std::fs::read(format!("{process}/{file}")).expect("it runs"));
    let done = ended(child).await.expect(0);
    assert!(done.stderr.len() > 100_000, "a trace log is long: {}", done.stderr.len());
    assert_eq!(bed.truth_of("worker-1").cri_loaded, Held::New);
    assert_eq!(bed.truth_of("worker-3").cri_loaded, Held::New);
    let mut texts = vec![("stdout", done.stdout), ("stderr", done.stderr), ("the report", read(&report))];
    texts.push(("the command line", String::from_utf8_lossy(&arguments).into_owned()));
    texts.push(("the environment", String::from_utf8_lossy(&environment).into_owned()));
    // The credential in the environment itself, and documents of every form.
    for (name, format) in [("table", "table"), ("wide", "wide"), ("json", "json"), ("yaml", "yaml")] {
        for command in ["plan", "verify"] {
            let mut look = bed.command_with(command, &[("--credential-file", "")], &["-o", format]);
            look.env("TALOS_GHCR_LOG", "trace").env("TALOS_GHCR_CREDENTIAL", credential(&bed, bed.lab.new_password()));
            let looked = finish(look).await;
            texts.push((name, looked.stdout + &looked.stderr));
        }
    }
    // A failure, whose causes are shown.
    bed.lab.registry().revoke(USER, bed.lab.new_password());
    let refused = finish(traced(&["-n", "worker-2"])).await.expect(1);
    texts.push(("a refusal", refused.stdout + &refused.stderr));
    bed.lab.registry().accept(USER, bed.lab.new_password());
    // What stands in the cluster.
    let store = bed.lab.objects();
    for kind in [Kind::Node, Kind::Lease, Kind::Pod] {
        texts.push(("the objects", store.list(kind).iter().map(|object| format!("{object}\n")).collect()));
    }
    for node in bed.lab.truth().nodes {
        texts.push(("a record", node.record.unwrap_or_default().to_string()));
    }
    for (name, text) in &texts {
        assert_eq!(leak(&forms, text), None, "{name} holds a secret");
        assert_eq!(bearer(text), None, "{name} holds a token");
    }
}

fn credential(bed: &Bed, password: &str) -> String {
    let host = bed.lab.registry().host();
    json!({"auths": {host: {"auth": STANDARD.encode(format!("{USER}:{password}"))}}}).to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p06_the_search_for_secrets_finds_one() {
    let bed = Bed::new(|options| (options.control_planes, options.workers) = (1, 0)).await;
    let forms = forms(&bed);
    let password = bed.lab.new_password();
    for around in ["", "a", "ab", "abc", "user:"] {
        let text = format!("{around}{password}{around}");
        assert!(leak(&forms, &text).is_some());
        assert!(leak(&forms, &format!("Basic {}", STANDARD.encode(&text))).is_some(), "behind {around:?}");
    }
    assert!(leak(&forms, &format!("{:?}", password.as_bytes())).is_some());
    assert_eq!(leak(&forms, lease_duration()), None);
}

/// The most memory, in KiB, that a run has used when worker-1 is drained and has that many pods of 20 KiB that stay.
async fn memory_with(pods: usize) -> usize {
    let bed = two_workers().await;
    let bulk = "x".repeat(20 << 10);
    for number in 0..pods {
        let pod = json!({
            "metadata": {
                "name": format!("static-{number}"), "namespace": "default",
                "annotations": {"kubernetes.io/config.mirror": "x"},
            },
            "spec": {"nodeName": "worker-1", "containers": [{"name": "a", "env": [{"name": "BULK", "value": bulk}]}]},
            "status": {"phase": "Running"},
        });
        bed.lab.objects().create(Kind::Pod, pod);
    }
    let mut gate = Gate::new(&bed);
    let run = bed.start(&["-n", "worker-1"]);
    let _drained = gate.hold_fence(lab::faults::When::Before, "worker-1", Some("claimed")).await;
    let status = read(format!("/proc/{}/status", run.id().expect("it runs")).as_ref());
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()).expect("a peak");
    peak.parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d09_memory_does_not_grow_with_the_pods_of_a_node() {
    // A page of 250 is held at once, so more than one are compared. The pods between are 34 MiB of text: kept whole they
    // were 80 MiB of memory, and as what a drain looks at they are 7 to 16, which the allocator keeps of the pages.
    let (few, many) = tokio::join!(memory_with(300), memory_with(2_000));
    assert!(many < few + (32 << 10), "{few} KiB with 300 pods, {many} KiB with 2000");
}
