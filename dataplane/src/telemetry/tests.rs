use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, accept_with, bind, connect, listen, recv, send};
use serde_json::json;
use tokio::sync::mpsc;

use super::server::largest_message;
use super::*;

/// Time limit for an answer, on a machine that may be busy.
const DEADLINE: Duration = Duration::from_secs(120);

fn echo_server(path: &Path, body: impl FnOnce(&Path) + Send + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let path = path.to_owned();
    runtime.block_on(async move {
        let (tx, mut rx) = mpsc::channel::<Request>(4);
        let server = Server::start(&path, Access::default(), tx).unwrap();
        let client = {
            let path = path.clone();
            tokio::task::spawn_blocking(move || body(&path))
        };
        tokio::pin!(client);
        let mut feed = Feed::new(|n| json!({ "lost": n }));
        let mut later = Vec::new();
        let (mut ticks, mut count) = (tokio::time::interval(Duration::from_millis(1)), 0u64);
        loop {
            tokio::select! {
                done = &mut client => break done.unwrap(),
                _ = ticks.tick() => {
                    feed.settle();
                    if feed.is_followed(1) {
                        feed.tell(1, json!(count));
                        count += 1;
                    }
                }
                Some(request) = rx.recv() => {
                    let parameters = request.command.parameters;
                    let answer = match request.command.name.as_str() {
                        "/echo" => Ok(json!(parameters).into()),
                        "/huge" => Ok(json!("x".repeat(MAX_ANSWER)).into()),
                        "/long" => {
                            let length = parameters.and_then(|n| n.parse().ok());
                            Ok(json!("x".repeat(length.unwrap_or_default())).into())
                        }
                        "/later" => {
                            let (tx, rx) = oneshot::channel();
                            later.push((parameters, tx));
                            Ok(Reply::Later(rx))
                        }
                        "/now" => {
                            for (parameters, client) in later.drain(..) {
                                let _ = client.send(match parameters.as_deref() {
                                    Some("no") => Err("no".to_owned()),
                                    Some("drop") => continue,
                                    yes => Ok(json!(yes)),
                                });
                            }
                            Ok(json!("now").into())
                        }
                        "/follow" => Ok(Reply::Follow(feed.follow(1, json!("first")))),
                        "/flood" => {
                            let subscription = feed.follow(2, json!("first"));
                            (0..100_000).for_each(|n| feed.tell(2, json!(n)));
                            Ok(Reply::Follow(subscription))
                        }
                        "/end" => {
                            feed.tell(1, json!("last"));
                            feed.end();
                            Ok(json!("ended").into())
                        }
                        name => Err(format!("no command {name}")),
                    };
                    let _ = request.answer.send(answer);
                }
            }
        }
        feed.end();
        server.finish().await;
        assert!(!path.exists(), "the socket is removed");
    });
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("telemetry-{}-{name}", std::process::id()))
}

#[test]
fn answers_refuses_and_survives_bad_requests() {
    echo_server(&scratch("ask"), |path| {
        assert_eq!(ask(path, "/echo,a,b", DEADLINE).unwrap(), json!("a,b"));
        assert!(matches!(ask(path, "/nothing", DEADLINE), Err(TelemetryError::Refused(_))));
        assert!(matches!(ask(path, "no slash", DEADLINE), Err(TelemetryError::Refused(_))));
        assert!(matches!(ask(path, &"/long".repeat(300), DEADLINE), Err(TelemetryError::Refused(_))));
        assert!(matches!(ask(path, "/huge", DEADLINE), Err(TelemetryError::Refused(_))));
        assert_eq!(ask(path, "/echo", DEADLINE).unwrap(), Value::Null);
    });
}

#[test]
fn an_answer_that_comes_later_keeps_nobody_else_waiting() {
    echo_server(&scratch("later"), |path| {
        let first = |request: &'static str| {
            std::thread::spawn({
                let path = path.to_owned();
                move || ask(&path, request, DEADLINE)
            })
        };
        let clients = ["/later,yes", "/later,no", "/later,drop"].map(first);
        while clients.iter().any(|client| !client.is_finished()) {
            assert_eq!(ask(path, "/echo", DEADLINE).unwrap(), Value::Null);
            assert_eq!(ask(path, "/now", DEADLINE).unwrap(), json!("now"));
        }
        let [yes, no, dropped] = clients.map(|client| client.join().unwrap());
        assert_eq!(yes.unwrap(), json!("yes"));
        assert_eq!(no.unwrap_err().to_string(), "no");
        assert!(dropped.unwrap_err().to_string().contains("stopping"));
    });
}

#[test]
fn answers_of_any_length_arrive_whole() {
    echo_server(&scratch("long"), |path| {
        let part = {
            let socket = seqpacket(SocketFlags::empty()).unwrap();
            connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
            largest_message(&socket).unwrap()
        };
        // `{"/long":"` and `"}` surround it.
        let whole = part - 12;
        for length in [0, whole - 1, whole, whole + 1, 5 * part - 12, MAX_ANSWER - 12] {
            let answer = ask(path, &format!("/long,{length}"), DEADLINE).unwrap();
            assert_eq!(answer.as_str().map(str::len), Some(length));
        }
        assert_eq!(ask(path, "/echo,next", DEADLINE).unwrap(), json!("next"));
    });
}

/// Returns a client with repeated answers that has received the first one.
fn follower(path: &Path, request: &str) -> Client {
    let mut client = Client::open(path, DEADLINE).unwrap();
    assert_eq!(client.ask(request).unwrap(), json!("first"));
    client
}

#[test]
fn what_is_followed_comes_until_the_client_asks_something_else() {
    echo_server(&scratch("follow"), |path| {
        let (mut one, mut two) = (follower(path, "/follow"), follower(path, "/follow"));
        let before: Vec<u64> =
            (0..5).map(|_| one.follow("/follow").unwrap().unwrap().as_u64().unwrap()).collect();
        assert!(before.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{before:?}");
        // Events before the request precede its answer.
        send(&one.socket, b"/echo,now", SendFlags::empty()).unwrap();
        let answer = std::iter::from_fn(|| one.next().unwrap()).find(|v| v.get("/echo").is_some());
        assert_eq!(answer.unwrap(), json!({"/echo": "now"}));
        assert_eq!(one.ask("/echo,again").unwrap(), json!("again"), "its repeated answers have ended");
        assert!(two.follow("/follow").unwrap().unwrap().is_u64(), "the other one continues");
    });
}

#[test]
fn the_end_of_repeated_answers_is_reported() {
    echo_server(&scratch("end"), |path| {
        let mut client = follower(path, "/follow");
        ask(path, "/end", DEADLINE).unwrap();
        let all: Vec<Value> = std::iter::from_fn(|| client.follow("/follow").unwrap()).collect();
        assert_eq!(all[all.len() - 2..], [json!("last"), Value::Null]);
    });
}

#[test]
fn a_client_that_does_not_read_loses_and_holds_nobody_up() {
    echo_server(&scratch("flood"), |path| {
        let mut client = Client::open(path, DEADLINE).unwrap();
        send(&client.socket, b"/flood", SendFlags::empty()).unwrap();
        // The flood has started.
        let mut values = vec![client.follow("/flood").unwrap().unwrap()];
        for _ in 0..20 {
            assert_eq!(ask(path, "/echo,x", DEADLINE).unwrap(), json!("x"));
        }
        let lost = loop {
            let value = client.follow("/flood").unwrap().unwrap();
            match value.get("lost").and_then(Value::as_u64) {
                Some(lost) => break lost,
                None => values.push(value),
            }
        };
        // The first answer and all values that were not lost.
        assert_eq!(values.len() as u64 - 1 + lost, 100_000);
    });
}

#[test]
fn followers_leave_slots_for_other_clients() {
    echo_server(&scratch("places"), |path| {
        let followers: Vec<Client> = (0..MAX_FOLLOWERS).map(|_| follower(path, "/follow")).collect();
        let mut one_more = Client::open(path, DEADLINE).unwrap();
        let refused = one_more.ask("/follow").unwrap_err().to_string();
        assert!(refused.contains("which is the maximum"), "{refused}");
        assert_eq!(one_more.ask("/echo,x").unwrap(), json!("x"));
        drop(followers);
        // Their slots are free again.
        let begin = Instant::now();
        while one_more.ask("/follow").is_err() {
            assert!(begin.elapsed() < DEADLINE);
        }
    });
}

#[test]
fn a_thousand_clients_come_and_go() {
    echo_server(&scratch("thousand"), |path| {
        for n in 0..1000 {
            let Ok(mut client) = Client::open(path, DEADLINE) else { panic!("client {n}") };
            match n % 3 {
                0 => assert_eq!(client.ask("/follow").unwrap(), json!("first")),
                1 => drop(send(&client.socket, &[0xff; 900], SendFlags::empty())),
                _ => assert_eq!(client.ask("/echo,x").unwrap(), json!("x")),
            }
        }
        let idle: Vec<Client> = (1..MAX_CLIENTS).map(|_| Client::open(path, DEADLINE).unwrap()).collect();
        assert_eq!(ask(path, "/echo,x", DEADLINE).unwrap(), json!("x"));
        drop(idle);
    });
}

/// Number of slots available to this user's clients.
fn places() -> usize {
    MAX_CLIENTS + usize::from(rustix::process::geteuid().is_root())
}

/// True if the server has closed the connection.
fn is_closed(client: &mut Client) -> bool {
    client.next().is_ok_and(|next| next.is_none())
}

#[test]
fn the_client_that_is_idle_for_longest_gives_way() {
    echo_server(&scratch("idle"), |path| {
        let mut idle: Vec<Client> = (0..places()).map(|_| Client::open(path, DEADLINE).unwrap()).collect();
        // All have received the greeting. The first one sends a request, so that the second has been idle
        // longest.
        assert_eq!(idle[0].ask("/echo,0").unwrap(), json!("0"));
        let mut newest = Client::open(path, DEADLINE).unwrap();
        assert_eq!(newest.ask("/echo,x").unwrap(), json!("x"));
        assert!(is_closed(&mut idle[1]));
        for n in [0, 2, MAX_CLIENTS - 1] {
            assert_eq!(idle[n].ask("/echo,y").unwrap(), json!("y"), "{n}");
        }
        // Twice as many clients as slots, one after another: each is answered, and the newest stay.
        let mut more: Vec<Client> = (0..2 * MAX_CLIENTS)
            .map(|_| {
                let mut client = Client::open(path, DEADLINE).unwrap();
                assert_eq!(client.ask("/echo,z").unwrap(), json!("z"));
                client
            })
            .collect();
        assert!(is_closed(&mut idle[0]) && is_closed(&mut more[0]));
        assert_eq!(more[MAX_CLIENTS + 1].ask("/echo,z").unwrap(), json!("z"));
    });
}

#[test]
fn clients_that_are_being_answered_keep_their_places_and_root_has_one() {
    echo_server(&scratch("busy"), |path| {
        let busy: Vec<Client> = (0..MAX_CLIENTS)
            .map(|_| {
                let client = Client::open(path, DEADLINE).unwrap();
                send(&client.socket, b"/later,yes", SendFlags::NOSIGNAL).unwrap();
                client
            })
            .collect();
        // The test's user has an additional slot only if it is root. `/now` makes the server answer the
        // others.
        if rustix::process::geteuid().is_root() {
            assert_eq!(ask(path, "/now", DEADLINE).unwrap(), json!("now"));
            for mut client in busy {
                assert!(client.next().unwrap().is_some());
            }
        }
    });
}

#[test]
fn clients_that_read_no_answers_lose_their_places() {
    echo_server(&scratch("unread"), |path| {
        let unread: Vec<Client> = (0..places())
            .map(|_| {
                let client = Client::open(path, DEADLINE).unwrap();
                for _ in 0..2 {
                    send(&client.socket, b"/long,8000000", SendFlags::NOSIGNAL).unwrap();
                }
                client
            })
            .collect();
        assert_eq!(ask(path, "/echo,x", DEADLINE).unwrap(), json!("x"));
        drop(unread);
    });
}

#[test]
fn the_kept_place_follows_nothing() {
    // The additional slot is only for root.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    echo_server(&scratch("kept"), |path| {
        let others: Vec<Client> = (0..MAX_CLIENTS).map(|_| Client::open(path, DEADLINE).unwrap()).collect();
        let mut kept = Client::open(path, DEADLINE).unwrap();
        let refused = kept.ask("/follow").unwrap_err().to_string();
        assert!(refused.contains("reserved for root has no repeated answers"), "{refused}");
        assert_eq!(kept.ask("/echo,x").unwrap(), json!("x"));
        drop(others);
    });
}

fn start(path: &Path) -> Result<(), TelemetryError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (tx, _rx) = mpsc::channel(1);
    runtime.block_on(async { Server::start(path, Access::default(), tx).map(drop) })
}

#[test]
fn what_others_have_at_the_path_stays() {
    let path = scratch("file");
    fs::write(&path, "mine").unwrap();
    let error = start(&path).unwrap_err();
    assert!(error.to_string().contains("occupied by a file that is not a socket"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    fs::remove_file(&path).unwrap();

    let path = scratch("daemon");
    let daemon = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(matches!(start(&path), Err(TelemetryError::Occupied(..))));
    assert!(path.exists());
    drop(daemon);
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_server_that_answers_nothing_or_without_end_is_waited_for_as_long_as_was_said() {
    let path = scratch("slow");
    let served = seqpacket(SocketFlags::empty()).unwrap();
    bind(&served, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&served, 0).unwrap();
    let patience = Duration::from_millis(300);
    let request = || {
        let begin = Instant::now();
        let error = ask(&path, "/stats", patience).unwrap_err().to_string();
        assert!(begin.elapsed() >= patience, "{:?}: {error}", begin.elapsed());
        error
    };
    // There is no accept: the kernel takes the first connection and keeps it after the client left; the
    // second finds a full queue.
    let first = request();
    assert!(first.contains("did not answer in time"), "{first}");
    let second = request();
    assert!(second.contains("accepts no more clients"), "{second}");
    // A byte now and then, each in time, but no end.
    drop(accept_with(&served, SocketFlags::CLOEXEC).unwrap());
    let trickle = std::thread::spawn(move || {
        let client = accept_with(&served, SocketFlags::CLOEXEC).unwrap();
        let greeting = br#"{"max_output_len":1}"#;
        send(&client, greeting, SendFlags::NOSIGNAL).unwrap();
        while send(&client, b" ", SendFlags::NOSIGNAL).is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert!(request().contains("did not answer in time"));
    trickle.join().unwrap();
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_full_backlog_is_a_served_socket_and_does_not_hold_us_up() {
    let path = scratch("backlog");
    let address = SocketAddrUnix::new(&path).unwrap();
    let busy = seqpacket(SocketFlags::empty()).unwrap();
    bind(&busy, &address).unwrap();
    listen(&busy, 0).unwrap();
    let mut waiting = Vec::new();
    loop {
        let client = seqpacket(SocketFlags::NONBLOCK).unwrap();
        if connect(&client, &address).is_err() {
            break;
        }
        waiting.push(client);
    }
    assert!(matches!(start(&path), Err(TelemetryError::InUse(_))));
    assert!(path.exists());
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_socket_that_another_made_meanwhile_stays() {
    let path = scratch("successor");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (tx, _rx) = mpsc::channel(1);
        let first = Server::start(&path, Access::default(), tx).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another's").unwrap();
        drop(first);
    });
    assert!(path.exists());
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_served_socket_is_not_taken_over_but_a_stale_one_is() {
    let path = scratch("stale");
    {
        let stale = seqpacket(SocketFlags::empty()).unwrap();
        bind(&stale, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    }
    assert!(path.exists());
    echo_server(&path, |path| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (tx, _rx) = mpsc::channel(1);
        let second = runtime.block_on(async { Server::start(path, Access::default(), tx).map(drop) });
        assert!(matches!(second, Err(TelemetryError::InUse(_))), "{second:?}");
    });
}

#[test]
fn a_request_that_has_come_is_answered_at_the_end_on_a_busy_machine() {
    let path = scratch("last");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = seqpacket(SocketFlags::empty()).unwrap();
    runtime.block_on(async {
        let (tx, rx) = mpsc::channel(1);
        let server = Server::start(&path, Access::default(), tx).unwrap();
        connect(&client, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        send(&client, b"/stats", SendFlags::empty()).unwrap();
        drop(rx);
        // Each iteration takes longer than the time for late requests.
        tokio::spawn(async {
            for _ in 0..8 {
                std::thread::sleep(Duration::from_millis(10));
                tokio::task::yield_now().await;
            }
        });
        server.finish().await;
    });
    drop(runtime);
    let mut answers = [const { Vec::new() }; 2];
    for answer in &mut answers {
        let mut bytes = [0; 1024];
        let (length, _) = recv(&client, &mut bytes[..], RecvFlags::empty()).unwrap();
        answer.extend_from_slice(&bytes[..length]);
    }
    let [greeting, answer] = answers.map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(greeting.contains("max_output_len"), "{greeting}");
    assert!(answer.contains("the program is stopping"), "{answer}");
}

#[test]
fn of_servers_that_start_at_once_on_a_stale_socket_one_has_it() {
    let directory = scratch("race");
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("socket");
    for round in 0..200 {
        let stale = seqpacket(SocketFlags::empty()).unwrap();
        bind(&stale, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(stale);
        let (begin, end) = (Barrier::new(4), Barrier::new(4));
        let started = std::thread::scope(|scope| {
            let all = [(); 4].map(|()| {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(async {
                        let (tx, _rx) = mpsc::channel(1);
                        begin.wait();
                        let server = Server::start(&path, Access::default(), tx);
                        end.wait();
                        match server {
                            Ok(_server) => true,
                            Err(TelemetryError::InUse(_)) => false,
                            Err(error) => panic!("{error}"),
                        }
                    })
                })
            });
            all.map(|thread| thread.join().unwrap())
        });
        assert_eq!(started.iter().filter(|started| **started).count(), 1, "in round {round}");
        assert!(!path.exists(), "it is removed at the end");
    }
    fs::remove_dir(&directory).unwrap();
}

#[test]
fn a_socket_is_its_users_or_a_groups_too() {
    let own = rustix::process::getegid().as_raw();
    for (group, mode) in [(None, 0o600), (Some(own), 0o660)] {
        let path = scratch("access");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let access = Access { user: None, group };
            let server = Server::start(&path, access, mpsc::channel(1).0).unwrap();
            let about = fs::symlink_metadata(&path).unwrap();
            assert_eq!((about.mode() & 0o7777, about.gid()), (mode, own));
            drop(server);
        });
        assert!(!path.exists());
    }
}

#[test]
fn nobody_there_says_what_to_do() {
    let error = ask(&scratch("nobody"), "/stats", DEADLINE).unwrap_err().to_string();
    assert!(error.contains("--socket"), "{error}");
}
