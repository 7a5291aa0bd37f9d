use super::*;

fn told(name: &str, addresses: &[&str]) -> Told {
    Told {
        name: name.into(),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        control_plane: Some(name.starts_with("cp")),
        system: String::new(),
    }
}

fn silent(place: &str, named_by: NamedBy) -> Silent {
    Silent { place: place.into(), address: place.parse().ok(), named_by, why: "it is off".into() }
}

/// Each candidate as `name: addresses`, with `(why)` where it is not asked.
fn words(of: &(Vec<Candidate>, Vec<String>)) -> Vec<String> {
    let word = |it: &Candidate| {
        let addresses: Vec<_> = it.told.addresses.iter().map(ToString::to_string).collect();
        let silent = it.silent.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        format!("{}: {}{silent}", it.told.name, addresses.join(" "))
    };
    of.0.iter().map(word).collect()
}

#[test]
fn v05_one_candidate_for_each_name_and_its_own_word_first() {
    let members = [
        Told { system: "Talos (v1.13.9)".into(), ..told("worker-1", &["10.0.1.1"]) },
        Told { system: "Talos (v1.13.9)".into(), ..told("cp-1", &["10.0.0.50", "10.0.0.1"]) },
        // Another endpoint sees it too.
        told("worker-1", &["10.0.1.1", "fd00::1"]),
    ];
    let itself = Told { control_plane: None, ..told("cp-1", &["10.0.0.1"]) };
    let found = candidates(&members, &[itself.clone(), itself], Vec::new());
    assert_eq!(words(&found), ["cp-1: 10.0.0.1 10.0.0.50", "worker-1: 10.0.1.1 fd00::1"]);
    let cp = &found.0[0].told;
    assert_eq!((cp.control_plane, cp.system.as_str()), (Some(true), "Talos (v1.13.9)"), "what it did not say itself");
    assert!(found.1.is_empty(), "{:?}", found.1);
}

#[test]
fn v05_a_machine_that_the_talosconfig_names_and_that_is_dead_does_not_go_missing() {
    let alive = [told("cp-1", &["10.0.0.1"])];
    let dead = || vec![silent("10.0.0.2", NamedBy::Endpoints), silent("10.0.0.2", NamedBy::Nodes)];
    let off = candidates(&[], &alive, dead());
    assert_eq!(words(&off), ["10.0.0.2: 10.0.0.2 (it is off)", "cp-1: 10.0.0.1"]);
    assert!(off.0[0].told.control_plane == Some(true) && off.1.is_empty(), "{off:?}");
    // Discovery knows its name.
    let members = [told("cp-1", &["10.0.0.1"]), told("cp-2", &["10.0.0.2"])];
    let on = candidates(&members, &alive, dead());
    assert_eq!(words(&on), ["cp-1: 10.0.0.1", "cp-2: 10.0.0.2"]);
    assert!(on.1.is_empty(), "{:?}", on.1);
    // Named as a node, it is one also where discovery does not know it.
    let unknown = candidates(&members[..1], &alive, vec![silent("10.0.0.9", NamedBy::Nodes)]);
    assert_eq!(words(&unknown), ["10.0.0.9: 10.0.0.9 (it is off)", "cp-1: 10.0.0.1"]);
    assert_eq!(unknown.0[0].told.control_plane, None);
}

#[test]
fn v05_an_endpoint_that_is_no_member_is_a_warning_where_discovery_lists_the_nodes() {
    let members = [told("cp-1", &["10.0.0.1"])];
    let found = candidates(&members, &[], vec![silent("lb.example.com", NamedBy::Endpoints)]);
    assert_eq!(words(&found), ["cp-1: 10.0.0.1"]);
    assert_eq!(found.1, ["the Talos endpoint lb.example.com does not say which node it is: it is off"]);
}

#[test]
fn v05_a_vip_is_the_last_address_to_be_asked_at() {
    let prefix = |ip: &[u8], prefix_length: i32| NetIpPrefix { ip: ip.to_vec(), prefix_length };
    let six = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let current =
        [prefix(&[10, 0, 0, 50], 32), prefix(&[10, 0, 0, 1], 24), prefix(&[10, 9, 0, 1], 24), prefix(&six, 64)];
    let of = |asked: Option<&str>| {
        let asked = asked.map(|asked| asked.parse().unwrap());
        own_addresses(asked, &current).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of(None), "10.0.0.1 10.9.0.1 fd00::1 10.0.0.50");
    assert_eq!(of(Some("10.9.0.1")), "10.9.0.1 10.0.0.1 fd00::1 10.0.0.50", "it answered there");
    assert_eq!(of(Some("10.0.0.50")), "10.0.0.1 10.9.0.1 fd00::1 10.0.0.50", "a VIP may move on");
    assert_eq!(of(Some("192.0.2.7")), "10.0.0.1 10.9.0.1 fd00::1 10.0.0.50 192.0.2.7", "something stands before it");
    assert_eq!(own_addresses(Some([10, 0, 0, 1].into()), &[]), [IpAddr::from([10, 0, 0, 1])]);
}

#[test]
fn v05_the_reason_is_that_of_its_own_address() {
    let (own, vip) = ([10, 0, 0, 3].into(), [10, 0, 0, 1].into());
    let other = || (vip, Failure::Other("cp-2".into()));
    assert_eq!(unreached(&[other(), (own, Failure::Unanswered("it is off".into()))]), (Some(own), "it is off".into()));
    assert_eq!(unreached(&[other()]), (Some(vip), "10.0.0.1 answers as cp-2".into()));
    assert_eq!(unreached(&[]), (None, "Talos knows no address of it".into()));
}
