//! ApplyConfiguration in its modes (write.jsonl, variants.jsonl; v1.14/write.jsonl).

use tonic::Code;

use super::*;
use crate::faults::When;
use crate::talos::cosi::kind;

const CRI_TOML: &str = "cri/conf.d/cri.toml";

async fn versions(bed: &Bed, node: &str) -> [String; 4] {
    [
        bed.version(node, &kind::MACHINE_CONFIG, "v1alpha1").await,
        bed.version(node, &kind::MACHINE_CONFIG, "persistent").await,
        bed.version(node, &kind::REGISTRIES, "registries").await,
        bed.version(node, &kind::ETC_FILE, CRI_TOML).await,
    ]
}

fn changed(password: &str) -> String {
    config(Role::Worker, "1.13.9", "w-1", password)
}

/// Waits until the versions are these.
async fn moved(bed: &Bed, expected: [&str; 4]) {
    bed.until_async(&format!("{expected:?}"), || async { versions(bed, "w-1").await == expected }).await;
}

/// Long enough for a change that must not come.
async fn settled(bed: &Bed) {
    bed.clock.sleep(Duration::from_millis(120)).await;
}

#[tokio::test]
async fn each_mode_moves_what_it_moves() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    assert_eq!(versions(&bed, "w-1").await, ["1", "-", "1", "2"], "after a boot there is no persistent config");

    let reply = bed.apply("w-1", &changed(NEW), Mode::NoReboot).await.unwrap();
    assert_eq!((reply.mode(), reply.mode_details.as_str()), (Mode::NoReboot, "Applied configuration without a reboot"));
    moved(&bed, ["2", "1", "2", "3"]).await;
    assert_eq!(bed.talos.node("w-1").machine_config(), changed(NEW).into_bytes(), "byte for byte");
    assert_eq!(bed.password("w-1").unwrap(), OLD, "the CRI of 1.13 goes on with what it has");

    bed.apply("w-1", &changed(NEW), Mode::NoReboot).await.unwrap();
    settled(&bed).await;
    assert_eq!(versions(&bed, "w-1").await, ["3", "2", "2", "3"], "equal bytes move the configs only");

    let reply = bed.apply("w-1", &changed("staged-3"), Mode::Staged).await.unwrap();
    assert_eq!(reply.mode_details, "Staged configuration to be applied after the next reboot");
    settled(&bed).await;
    assert_eq!(versions(&bed, "w-1").await, ["3", "3", "2", "3"]);

    let reply = bed.apply("w-1", &changed("try-4"), Mode::Try).await.unwrap();
    assert_eq!(reply.mode(), Mode::Try);
    assert!(reply.mode_details.ends_with("will be automatically reverted back in 1.5s"), "{}", reply.mode_details);
    moved(&bed, ["4", "3", "3", "4"]).await;
    moved(&bed, ["5", "3", "4", "5"]).await;
    assert_eq!(bed.talos.node("w-1").configured(HOST).unwrap().1, NEW, "the TRY went back");

    bed.apply("w-1", &changed(NEW), Mode::NoReboot).await.unwrap();
    assert_eq!(bed.talos.node("w-1").persisted_config(), changed(NEW).into_bytes(), "the staged one is gone, silently");
}

#[tokio::test]
async fn a_dry_run_shows_both_passwords_and_cancels_a_try() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    bed.apply("w-1", &changed("try-4"), Mode::Try).await.unwrap();
    let request = ApplyConfigurationRequest {
        data: changed(NEW).into_bytes(),
        mode: Mode::NoReboot.into(),
        dry_run: true,
        ..Default::default()
    };
    let reply = bed.machine("w-1", "os:admin").apply_configuration(request).await.unwrap().into_inner();
    let details = &reply.messages[0].mode_details;
    assert!(details.starts_with("Dry run summary:\nApplied configuration without a reboot (skipped in dry-run).\nCon"));
    assert!(details.contains("-password: \"try-4\"") && details.contains("+password: \"new-secret-2\""), "{details}");
    bed.clock.sleep(Duration::from_millis(1700)).await;
    assert_eq!(bed.talos.node("w-1").configured(HOST).unwrap().1, "try-4", "the TRY stays for good");
}

#[tokio::test]
async fn what_a_node_does_not_take_changes_nothing() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    let before = versions(&bed, "w-1").await;
    let needs_reboot =
        changed(OLD).replace("    certSANs: []\n", "    certSANs: []\n    env:\n        FOO: barsecret\n");
    let status = bed.apply("w-1", &needs_reboot, Mode::NoReboot).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status.message().starts_with("this config change can't be applied in immediate mode\ndiff:\n--- a\n+++ b\n")
    );
    assert!(status.message().contains("+        FOO: barsecret"));
    for (text, refusal) in
        [("", "config not found"), ("a: b\n", "error decoding document /v1alpha1/ (line 1): missing kind")]
    {
        let status = bed.apply("w-1", text, Mode::NoReboot).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, refusal));
    }
    let mut request = ApplyConfigurationRequest { data: changed(NEW).into_bytes(), ..Default::default() };
    request.set_mode(Mode::NoReboot);
    for role in ["os:reader", "os:operator"] {
        let status = bed.machine("w-1", role).apply_configuration(request.clone()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "not authorized"));
    }
    assert_eq!(versions(&bed, "w-1").await, before);
}

#[tokio::test]
async fn since_1_14_every_change_is_live_and_reboot_is_no_mode() {
    let bed = Bed::start(0, 1, "1.14.0-rc.1").await;
    let text = config(Role::Worker, "1.14.0-rc.1", "w-1", OLD);
    let status = bed.apply("w-1", &text, Mode::Reboot).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unimplemented, "the REBOOT mode is not supported, please use AUTO or NO_REBOOT modes instead")
    );
    let text = text.replace("    certSANs: []\n", "    certSANs: []\n    env:\n        FOO: bar\n");
    assert_eq!(bed.apply("w-1", &text, Mode::Auto).await.unwrap().mode(), Mode::NoReboot);
    assert_eq!(bed.talos.node("w-1").boots(), 0);
}

#[tokio::test]
async fn an_auto_apply_that_needs_it_reboots() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    let text = changed(NEW).replace("    certSANs: []\n", "    certSANs: []\n    env:\n        FOO: bar\n");
    assert_eq!(bed.apply("w-1", &text, Mode::Auto).await.unwrap().mode(), Mode::Reboot);
    bed.until("the boot", || bed.talos.node("w-1").boots() == 1 && bed.password("w-1").as_deref() == Some(NEW)).await;
}

#[tokio::test]
async fn an_annotation_goes_to_the_node_and_comes_back_as_its_status() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    let record = "{\"v\":1}";
    let text = changed(OLD).replace(
        "    certSANs: []\n",
        &format!("    certSANs: []\n    nodeAnnotations:\n        talos-ghcr/proof: '{record}'\n"),
    );
    bed.apply("w-1", &text, Mode::NoReboot).await.unwrap();
    assert_eq!(bed.talos.node("w-1").record().as_deref(), Some(record));
    bed.until_async("the annotation in NodeStatuses", || async {
        let status = bed.get("w-1", &kind::NODE_STATUS, "w-1").await.unwrap();
        let status: talos_proto::proto::talos::resource::definitions::k8s::NodeStatusSpec = spec(&status);
        status.annotations.get("talos-ghcr/proof").map(String::as_str) == Some(record)
    })
    .await;
    bed.get("w-1", &kind::NODE_ANNOTATION, "talos-ghcr/proof").await.unwrap();
    assert_eq!(bed.version("w-1", &kind::ETC_FILE, CRI_TOML).await, "2", "an annotation is no change to the CRI");
    bed.cluster.change("w-1", |seen| drop(seen.annotations.insert("talos-ghcr/proof".into(), "foreign".into())));
    bed.until("an owned annotation is set back", || {
        bed.cluster.node("w-1").unwrap().annotations["talos-ghcr/proof"] == record
    })
    .await;
}

#[tokio::test]
async fn a_reply_can_be_lost_and_a_request_held() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    bed.talos.node("w-1").set_reply_lost_once("ApplyConfiguration");
    bed.apply("w-1", &changed(NEW), Mode::NoReboot).await.unwrap_err();
    assert_eq!(bed.talos.node("w-1").configured(HOST).unwrap().1, NEW, "it took effect");

    let mut point = bed.faults.crash_point_from_now(1, When::Before);
    let third = changed("third");
    let apply = bed.apply("w-1", &third, Mode::NoReboot);
    let (reply, ()) = tokio::join!(apply, async {
        let held = point.reached().await.unwrap();
        assert_eq!(held.what, "talos/w-1 ApplyConfiguration w-1");
        assert_eq!(bed.talos.node("w-1").configured(HOST).unwrap().1, NEW);
        point.cut();
    });
    reply.unwrap_err();
    assert_eq!(bed.talos.node("w-1").configured(HOST).unwrap().1, NEW, "it never took effect");
}

#[tokio::test]
async fn others_write_too() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    let node = bed.talos.node("w-1");
    node.stage_foreign(changed(NEW).as_bytes()).unwrap();
    assert_eq!(versions(&bed, "w-1").await[..2], ["1", "1"]);
    node.try_foreign(changed("tried").as_bytes(), Duration::from_millis(50)).unwrap();
    assert_eq!(node.configured(HOST).unwrap().1, "tried");
    bed.until("it goes back", || node.configured(HOST).unwrap().1 == OLD).await;
    node.apply_foreign(b"nonsense").unwrap_err();
    assert!(bed.log.all().iter().all(|entry| !entry.write), "nothing of that entered through the API");
}
