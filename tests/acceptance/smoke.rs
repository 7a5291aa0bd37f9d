//! The main job, end to end.

use crate::harness::{Bed, leaks};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_credential_is_rolled_through_and_the_second_run_writes_nothing() {
    let bed = Bed::new(|options| options.talos = vec!["1.13.9=5".parse().unwrap(), "1.14.0=1".parse().unwrap()]).await;
    let rolled = bed.run(&[]).await.expect(0);
    bed.assert_done();
    assert!(!leaks(&bed.lab, &rolled.stderr) && !leaks(&bed.lab, &rolled.stdout));
    bed.lab.reset_counters();
    let again = bed.run(&["-o", "json"]).await.expect(0);
    assert_eq!(again.json()["result"], "nothing-to-do");
    assert_eq!(bed.writes(), 0);
}
