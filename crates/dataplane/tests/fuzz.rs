//! Everything that reads foreign bytes, fed with a saved corpus and with mutations of it.
//!
//! `tests/fuzz/<target>/` holds what was worth keeping: valid input of every kind, and whatever once
//! was misread. Each target runs over all of it, then over mutations: the same ones each time, so
//! that a change is red or green for its own reasons. `ATTNROUTE_FUZZ_ROUNDS` multiplies them, and
//! `ATTNROUTE_FUZZ_SEED` takes others.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{channel, Sender};
use std::time::Duration;

use attnroute_dataplane::config::{Config, EndpointSetConfig, ServiceLimits};
use attnroute_dataplane::deadline;
use attnroute_dataplane::orca::{Claims, LoadReport, MetricNames};
use attnroute_dataplane::route::{check_authority, Authorities, Routes};
use attnroute_dataplane::runtime::DataPlane;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A hang guard, far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

#[expect(
    clippy::disallowed_methods,
    reason = "a longer run is asked for from outside"
)]
fn setting(name: &str, default: u32) -> u32 {
    let text = std::env::var(name).unwrap_or_default();
    text.parse().unwrap_or(default)
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fuzz")
        .join(target);
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .expect("the corpus of the target")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no corpus in {}", folder.display());
    let read = |path: &std::path::PathBuf| std::fs::read(path).expect("a file of the corpus");
    paths.iter().map(read).collect()
}

/// One change of an input.
#[derive(Debug, Clone)]
enum Edit {
    Set(u16, u8),
    Flip(u16, u8),
    Insert(u16, Vec<u8>),
    Remove(u16, u8),
    Repeat(u16, u8),
    Cut(u16),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<u16>();
    let telling = prop_oneof![
        Just(0_u8),
        Just(1),
        Just(9),
        Just(127),
        Just(128),
        Just(255)
    ];
    prop_oneof![
        (at, any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (at, telling).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (at, 0_u8..8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        (at, proptest::collection::vec(any::<u8>(), 1..20))
            .prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (at, 1_u8..20).prop_map(|(at, count)| Edit::Remove(at, count)),
        (at, 1_u8..60).prop_map(|(at, count)| Edit::Repeat(at, count)),
        at.prop_map(Edit::Cut),
    ]
}

fn apply(bytes: &mut Vec<u8>, edit: &Edit) {
    let place = |at: &u16| usize::from(*at) % (bytes.len() + 1);
    match edit {
        Edit::Set(at, byte) => {
            let at = place(at);
            if let Some(found) = bytes.get_mut(at) {
                *found = *byte;
            }
        }
        Edit::Flip(at, bit) => {
            let at = place(at);
            if let Some(found) = bytes.get_mut(at) {
                *found ^= 1 << bit;
            }
        }
        Edit::Insert(at, more) => {
            let at = place(at);
            bytes.splice(at..at, more.iter().copied());
        }
        Edit::Remove(at, count) => {
            let at = place(at);
            bytes.drain(at..(at + usize::from(*count)).min(bytes.len()));
        }
        Edit::Repeat(at, count) => {
            let at = place(at);
            let end = (at + usize::from(*count)).min(bytes.len());
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part);
        }
        Edit::Cut(at) => bytes.truncate(place(at)),
    }
}

/// Runs a target over its corpus and over that many mutations, alone or of two inputs in a row.
fn fuzz(target: &str, mutations: u32, check: impl Fn(&[u8])) {
    let corpus = corpus(target);
    for input in &corpus {
        check(input);
    }
    let some = 0..corpus.len();
    let mutation = (
        some.clone(),
        proptest::option::of(some),
        proptest::collection::vec(edit(), 0..8),
    )
        .prop_map(|(first, second, edits)| {
            let mut bytes = corpus[first].clone();
            bytes.extend(
                second
                    .iter()
                    .flat_map(|index| corpus[*index].iter().copied()),
            );
            edits.iter().for_each(|edit| apply(&mut bytes, edit));
            bytes
        });
    let config = ProptestConfig {
        cases: mutations * setting("ATTNROUTE_FUZZ_ROUNDS", 1),
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut seed = [7; 32];
    seed[..4].copy_from_slice(&setting("ATTNROUTE_FUZZ_SEED", 0).to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let result = TestRunner::new_with_rng(config, rng).run(&mutation, |bytes| {
        check(&bytes);
        Ok(())
    });
    if let Err(TestError::Fail(reason, bytes)) = result {
        panic!("{target}: {reason}; input b\"{}\"", bytes.escape_ascii());
    }
}

#[test]
fn config() {
    fuzz("config", 1_500, |bytes| {
        if Config::parse(bytes).is_ok() {
            DataPlane::new(bytes, 1).expect("what can be read can be used");
        }
    });
}

#[test]
fn endpoints() {
    let limits = ServiceLimits::default();
    fuzz("endpoints", 1_500, |bytes| {
        if let Ok(set) = EndpointSetConfig::parse(bytes, &limits) {
            let weights = set.endpoints.iter().map(|endpoint| endpoint.static_weight);
            assert!(weights
                .into_iter()
                .all(|weight| weight.is_finite() && weight >= 0.0));
        }
    });
}

#[test]
fn route() {
    fuzz("route", 1_500, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let lines: Vec<&str> = text.lines().collect();
        let table = Authorities::new(lines.iter().map(|line| ((*line).to_owned(), *line)));
        for line in &lines {
            let found = table.find(line);
            if check_authority(line).is_ok() && !line.contains('*') {
                let found = found.expect("it stands in the table");
                assert!(found.eq_ignore_ascii_case(line), "{line} found {found}");
            }
        }
        let routes: Vec<_> = lines
            .iter()
            .filter(|line| line.starts_with('/'))
            .map(|line| serde_json::json!({"match": {"path_prefix": line}}))
            .filter_map(|route| serde_json::from_value(route).ok())
            .collect();
        let table = Routes::new(&routes);
        for line in &lines {
            let longest = lines.iter().filter(|prefix| prefix.starts_with('/'));
            let longest = longest
                .filter(|prefix| line.starts_with(**prefix))
                .max_by_key(|p| p.len());
            let found = table.find(line).map(|route| serde_prefix(&route.matcher));
            assert_eq!(found.as_deref(), longest.copied(), "{line}");
        }
    });
}

fn serde_prefix(matcher: &attnroute_dataplane::config::PathMatch) -> String {
    match matcher {
        attnroute_dataplane::config::PathMatch::Path(text)
        | attnroute_dataplane::config::PathMatch::PathPrefix(text) => text.clone(),
    }
}

#[test]
fn orca() {
    let names = MetricNames::default();
    let load_metrics = HeaderName::from_static("endpoint-load-metrics-bin");
    let push_back = HeaderName::from_static("grpc-retry-pushback-ms");
    fuzz("orca", 3_000, |bytes| {
        let check = |report: LoadReport| {
            let values = [
                report.cpu_utilization,
                report.mem_utilization,
                report.application_utilization,
                report.qps,
                report.eps,
                report.metric,
                report.inflight,
                report.queue,
                report.concurrency,
                report.service_time_s,
                report.started_s,
            ];
            for value in values.into_iter().flatten() {
                assert!(value.is_finite() && value >= 0.0, "{value}");
            }
        };
        if let Ok(report) = LoadReport::decode(bytes, &names) {
            check(report);
        }
        if let Ok(value) = HeaderValue::from_bytes(bytes) {
            let mut trailers = HeaderMap::new();
            trailers.insert(push_back.clone(), value.clone());
            trailers.append(load_metrics.clone(), value);
            if let Some(claims) = Claims::of(&trailers) {
                let _ = claims.push_back_ns();
                if let Some(Ok(report)) = claims.report(&names) {
                    check(report);
                }
            }
        }
    });
}

#[test]
fn grpc_timeout() {
    fuzz("grpc_timeout", 3_000, |bytes| {
        let Ok(value) = HeaderValue::from_bytes(bytes) else {
            return;
        };
        let mut headers = HeaderMap::new();
        headers.insert(deadline::GRPC_TIMEOUT.clone(), value);
        if let Ok(Some(timeout)) = deadline::parse(&headers) {
            headers.insert(deadline::GRPC_TIMEOUT.clone(), deadline::encode(timeout));
            let again = deadline::parse(&headers).expect("own form").expect("one");
            assert!(again <= timeout.max(Duration::from_nanos(1)) && !again.is_zero());
        }
    });
}

/// A data plane with one service that has one endpoint.
fn data_plane(endpoint: SocketAddr) -> (DataPlane, SocketAddr) {
    let config = r#"{"version":1,"threads":1,
        "listeners":[{"name":"in","mode":"explicit","address":"127.0.0.1:0"}],
        "services":[{"name":"s","authorities":["*"],
                     "connection":{"backoff_base_ms":1,"backoff_max_ms":1}}]}"#;
    let plane = DataPlane::new(config.as_bytes(), 1).expect("a valid configuration");
    let set = format!(r#"{{"endpoints":[{{"address":"{endpoint}"}}]}}"#);
    plane
        .apply_endpoints("s", set.as_bytes())
        .expect("a valid set");
    let bound = plane.start().expect("a port");
    let address = bound["in"].parse().expect("an address");
    (plane, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).expect("the listener is there");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    socket.set_write_timeout(Some(PATIENCE)).expect("a socket");
    socket
}

/// Writes and ends, then reads until the other side ends too: that nothing holds a connection.
fn exchange(mut socket: TcpStream, bytes: &[u8]) {
    // It may end before all is written.
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let mut received = Vec::new();
    if let Err(error) = socket.read_to_end(&mut received) {
        let hangs = matches!(
            error.kind(),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
        );
        assert!(!hangs, "the connection stays open");
    }
}

/// An ordinary call over a connection of its own; true if it got a final status.
fn call(address: SocketAddr) -> bool {
    let mut socket = connect(address);
    // HEADERS of stream 1 with END_STREAM: POST, http, path `/`, authority `s`, by static indexes
    // and one literal.
    let block = [0x83, 0x86, 0x84, 0x01, 0x01, b's'];
    let mut bytes = [PREFACE, SETTINGS].concat();
    bytes.extend([0, 0, block.len() as u8, 1, 0x5, 0, 0, 0, 1]);
    bytes.extend(block);
    socket.write_all(&bytes).expect("it listens");
    loop {
        let mut head = [0; 9];
        if socket.read_exact(&mut head).is_err() {
            return false;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        if socket.read_exact(&mut payload).is_err() {
            return false;
        }
        let (kind, flags, on_stream) = (head[3], head[4], head[8] == 1);
        if on_stream && (kind == 3 || flags & 1 != 0 && kind <= 1) {
            return true;
        }
    }
}

#[test]
fn frames_of_a_client() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
    let refusing = nobody.local_addr().expect("an address");
    drop(nobody);
    let (plane, address) = data_plane(refusing);
    fuzz("frames", 150, |bytes| {
        exchange(connect(address), &[PREFACE, SETTINGS, bytes].concat());
        assert!(call(address), "others are not served any more");
    });
    exchange(connect(address), b"");
    plane.stop();
}

/// Reads until a request begins. False if the connection ends before.
fn read_request(socket: &mut TcpStream) -> bool {
    if socket.read_exact(&mut [0; PREFACE.len()]).is_err() {
        return false;
    }
    loop {
        let mut head = [0; 9];
        if socket.read_exact(&mut head).is_err() {
            return false;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        if socket.read_exact(&mut vec![0; length as usize]).is_err() {
            return false;
        }
        if head[3] == 1 {
            return true;
        }
    }
}

/// An endpoint that answers the first call of each connection with the bytes it was given last, and
/// ends it.
fn endpoint() -> (SocketAddr, Sender<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (give, take) = channel::<Vec<u8>>();
    std::thread::spawn(move || {
        let mut current = Vec::new();
        for socket in listener.incoming() {
            let Ok(mut socket) = socket else { return };
            let _ = socket.write_all(SETTINGS);
            if read_request(&mut socket) {
                current = take.try_iter().last().unwrap_or(current);
                let _ = socket.write_all(&current);
            }
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let _ = std::io::copy(&mut socket, &mut std::io::sink());
        }
    });
    (address, give)
}

#[test]
fn frames_of_an_endpoint() {
    let (endpoint, give) = endpoint();
    let (plane, address) = data_plane(endpoint);
    fuzz("frames", 150, |bytes| {
        give.send(bytes.to_vec()).expect("the endpoint runs");
        assert!(call(address), "a call has no final status");
    });
    plane.stop();
}
