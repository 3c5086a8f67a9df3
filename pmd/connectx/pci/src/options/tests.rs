use super::*;
use crate::hca::HcaPort;

fn options(list: &[&str]) -> Options {
    Options::try_parse_from(std::iter::once(&"softhca").chain(list)).unwrap()
}

/// A temporary file, removed with its test.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("softhca-{name}-{}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn plan(&self, list: &[&str]) -> Result<Plan, OptionsError> {
        let mut all = vec!["--config", self.0.to_str().unwrap()];
        all.extend(list);
        options(&all).plan()
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn the_command_line_wins_over_the_file() {
    let file = TestFile::new(
        "wins",
        "socket = '/tmp/a'\nnode-guid = '02:c9:3:0a1b:2c0'\nseed = 7\nqueue-pairs = 64\nmemory-keys = 128\n",
    );
    let plan = file.plan(&["--socket", "/tmp/b", "--queue-pairs", "32"]).unwrap();
    assert_eq!((plan.socket, plan.hca.seed), ("/tmp/b".into(), 7));
    assert_eq!(plan.hca.port.guid.0, plan.hca.node_guid.0 + 1);
    assert!(plan.hca.second_port.is_none());
    let logs = Table::ALL.map(|table| plan.hca.tables.log(table));
    assert_eq!(logs, [5, 12, 12, 7, 5]);
}

#[test]
fn every_option_is_a_key_of_the_file_with_the_same_meaning() {
    let core = Allowed::now().unwrap().list().last().unwrap().to_string();
    let all = [
        ("lcore", core.as_str()),
        ("socket", "/tmp/every"),
        ("node-guid", "0002c90300a1b2c0"),
        ("port-guid", "0002c90300a1b2c8"),
        ("cable", "shm:/tmp/every-cable"),
        ("description", "a device"),
        ("seed", "11"),
        ("report", "/tmp/every-report"),
        ("queue-pairs", "128"),
        ("completion-queues", "256"),
        ("shared-receive-queues", "512"),
        ("memory-keys", "1024"),
        ("event-queues", "64"),
        ("users", "16"),
        ("grh-required", "true"),
        ("log", "warn"),
        ("log-filter", "softhca::hca=debug"),
    ];
    let list: Vec<_> =
        all.iter().flat_map(|(key, value)| [format!("--{key}"), (*value).to_owned()]).collect();
    let list: Vec<_> = list.iter().map(String::as_str).collect();
    let text: String = all
        .iter()
        .map(|(key, value)| match value.parse::<u64>() {
            Ok(number) if value.len() < 16 => format!("{key} = {number}\n"),
            _ if *value == "true" => format!("{key} = true\n"),
            _ => format!("{key} = '{value}'\n"),
        })
        .collect();
    let by_file = TestFile::new("every", &text).plan(&[]).unwrap();
    let by_line = options(&list).plan().unwrap();
    assert_eq!(format!("{by_file:?}"), format!("{by_line:?}"));
    // No option is missing here.
    use clap::CommandFactory;
    let known = Options::command();
    let known = known.get_arguments().filter_map(clap::Arg::get_long);
    assert_eq!(known.filter(|name| !["config", "help", "version"].contains(name)).count(), all.len());
}

#[test]
fn an_error_in_the_file_is_reported_with_its_line_and_a_remedy() {
    for (text, line, words) in [
        ("sock = '/tmp/a'\n", 1, ["sock", "expected one of `socket`"]),
        ("\nseed = 'x'\n", 2, ["expected u64", "--help"]),
        ("\n\nseed = -1\n", 3, ["u64", "--help"]),
        ("socket = '/s'\nsocket = '/t'\n", 2, ["duplicate", "--help"]),
        ("socket = '/s'\n\n# one\nport-guid = 'fe80::1'\n", 4, ["port-guid", "hexadecimal"]),
        ("socket = '/s'\ncable = 'roce:eth0'\n", 2, ["cable", "shm:"]),
        ("socket = '/s'\ncable = 'shm:x?los=1'\n", 2, ["cable", "udp:"]),
        ("socket = ''\n", 1, ["socket", "107"]),
        ("seed = 1\nsocket = '/s'\nqueue-pairs = 1000\n", 3, ["queue-pairs", "from 16 to 8192"]),
        ("socket = '/s'\n\nlcore = 1023\n", 3, ["lcore", "choose one of"]),
        ("socket = '/s'\nevent-queues = 4\n", 2, ["event-queues", "from 8 to 128"]),
        ("socket = '/s'\nlog = 'loud'\n", 2, ["log", "error, warn, info, debug"]),
        ("socket = '/s'\n\nlog-filter = 'debug'\n", 3, ["log-filter", "MODULE=LEVEL"]),
        ("socket = '/s'\nusers = 3\n", 2, ["users", "from 4 to 4096"]),
        ("socket = '/s'\nusers = 2\n", 2, ["users", "from 4 to 4096"]),
        ("socket = '/s'\n[[port]]\n[[port]]\n[[port]]\n", 4, ["3 ports", "one or two"]),
        ("socket = '/s'\ncable = 'none'\n[[port]]\n", 2, ["cable", "[[port]]"]),
        ("socket = '/s'\n[[port]]\nport-guid = '5'\n", 3, ["port-guid", "expected `guid` or `cable`"]),
        ("socket = '/s'\n[[port]]\n\nguid = 'x'\n", 4, ["guid", "hexadecimal"]),
        ("socket = '/s'\n[[port]]\n[[port]]\ncable = 'shm:x'\n", 4, ["cable", "none"]),
        ("socket = '/s'\n[[port]]\nguid = '5'\n[[port]]\nguid = '05'\n", 4, ["both ports", "its own"]),
    ] {
        let file = TestFile::new("wrong", text);
        let error = file.plan(&[]).unwrap_err().to_string();
        let place = format!("{}:{line}: ", file.0.display());
        assert!(error.starts_with(&place), "{text:?}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{text:?}: {error}");
    }
    let error = options(&["--config", "/nowhere/at.toml"]).plan().unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/at.toml: ") && error.contains("--config"), "{error}");
}

#[test]
fn invalid_options_are_refused_by_name() {
    let refused = |list: &[&str]| options(list).plan().unwrap_err().to_string();
    assert!(refused(&[]).contains("--socket"));
    assert!(refused(&["--socket", "/s", "--node-guid", "xyz"]).contains("--node-guid"));
    assert!(refused(&["--socket", "/s", "--port-guid", "0"]).contains("--port-guid"));
    assert!(refused(&["--socket", "/s", "--node-guid", "00112233445566778"]).contains("--node-guid"));
    assert!(refused(&["--socket", "/s", "--cable", "roce:eth0"]).contains("Ethernet"));
    assert!(refused(&["--socket", "/s", "--cable", "tcp:x"]).contains("--cable"));
    assert!(refused(&["--socket", "/s", "--description", &"x".repeat(65)]).contains("64"));
    assert!(refused(&["--socket", &"x".repeat(108)]).contains("107"));
    assert!(refused(&["--socket", "/s", "--lcore", "99999"]).contains("--lcore: core 99999"));
    assert!(refused(&["--socket", "/s", "--memory-keys", "131072"]).contains("65536"));
}

/// GUIDs of ports, relative to the node's, and their cables.
fn ports(plan: &Plan) -> Vec<(u64, String)> {
    let cable = |port: &HcaPort| port.cable.as_ref().map_or_else(|| "none".into(), ToString::to_string);
    plan.hca.ports().map(|(_, port)| (port.guid.0 - plan.hca.node_guid.0, cable(port))).collect()
}

#[test]
fn a_second_cable_or_guid_is_that_of_a_second_port() {
    let of = |list: &[&str]| ports(&options(&[&["--socket", "/s"], list].concat()).plan().unwrap());
    assert_eq!(of(&[]), [(1, "none".into())]);
    assert_eq!(of(&["--cable", "shm:/a", "--cable", "shm:/b"]), [(1, "shm:/a".into()), (2, "shm:/b".into())]);
    assert_eq!(of(&["--cable", "none", "--cable", "shm:/b"]), [(1, "none".into()), (2, "shm:/b".into())]);
    let node = ["--node-guid", "100", "--port-guid", "105", "--port-guid", "0106"];
    assert_eq!(of(&[&node[..], &["--cable", "shm:/a"]].concat()), [(5, "shm:/a".into()), (6, "none".into())]);
    // In the file, overridden by the command line.
    let text = "socket = '/s'\nnode-guid = '100'\n[[port]]\ncable = 'shm:/a'\n[[port]]\nguid = '109'\ncable = 'shm:/b'\n";
    let file = TestFile::new("two", text);
    assert_eq!(ports(&file.plan(&[]).unwrap()), [(1, "shm:/a".into()), (9, "shm:/b".into())]);
    let plan = file.plan(&["--cable", "none", "--port-guid", "103"]).unwrap();
    assert_eq!(ports(&plan), [(3, "none".into()), (9, "shm:/b".into())]);
    // A file with one port and no table.
    let file =
        TestFile::new("one", "socket = '/s'\nnode-guid = '100'\ncable = 'shm:/a'\nport-guid = '108'\n");
    assert_eq!(ports(&file.plan(&[]).unwrap()), [(8, "shm:/a".into())]);
    let plan = file.plan(&["--cable", "shm:/c", "--cable", "shm:/d"]).unwrap();
    assert_eq!(ports(&plan), [(8, "shm:/c".into()), (2, "shm:/d".into())]);
}

#[test]
fn conflicting_ports_are_refused() {
    let refused =
        |list: &[&str]| options(&[&["--socket", "/s"], list].concat()).plan().unwrap_err().to_string();
    let three = refused(&["--cable", "none", "--cable", "none", "--cable", "none"]);
    assert!(three.starts_with("--cable: 3 ports") && three.contains("one or two"), "{three}");
    let same = refused(&["--cable", "shm:/a", "--cable", "shm:/a?loss=0.5"]);
    assert!(same.contains("both ports have the cable shm:/a"), "{same}");
    let same = refused(&["--node-guid", "5", "--port-guid", "7", "--cable", "none", "--cable", "none"]);
    assert!(same.contains("both ports have GUID 0x0000000000000007"), "{same}");
}

#[test]
fn sockets_have_guids_of_their_own() {
    let of = |path: &str| options(&["--socket", path]).plan().unwrap().hca.node_guid;
    assert!(of("/a") == of("/a") && of("/a") != of("/b"));
}

/// The packaged example, as it is and with all commented keys enabled.
#[test]
fn the_example_can_be_used_and_goes_to_that_of_a_fabric() {
    let text = include_str!("../../../../../examples/softhca.toml");
    let plan = TestFile::new("example", text).plan(&[]).unwrap();
    assert_eq!(
        (plan.socket.to_str(), plan.lcore, plan.report.as_deref()),
        (Some("/run/vm1.sock"), None, None)
    );
    let [(1, cable)] = &ports(&plan)[..] else { panic!("{:?}", ports(&plan)) };
    assert!(include_str!("../../../../../examples/fabric.toml").contains(&format!("url = \"{cable}\"")));
    // A commented key follows the sign directly.
    let is_key = |line: &str| line.strip_prefix('#').is_some_and(|rest| !rest.starts_with(' '));
    let lines = text.lines().map(|line| if is_key(line) { &line[1..] } else { line });
    let all: Vec<&str> = lines.collect();
    assert!(all.iter().filter(|line| !line.starts_with('#')).count() > 8, "{all:?}");
    let core = Allowed::now().unwrap().list().last().unwrap().to_string();
    let plan = TestFile::new("example-all", &all.join("\n")).plan(&["--lcore", &core]).unwrap();
    assert_eq!(plan.report.as_deref(), Some(Path::new("/run/vm1.json")));
}
