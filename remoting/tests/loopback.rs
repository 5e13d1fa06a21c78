//! Real sockets on loopback. Where timers matter the clock is paused; nothing waits by sleeping.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed, which is what it is for")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use bytes::BytesMut;
use protocol::FrameLimits;
use protocol::RemotingCommand;
use protocol::RequestCode;
use protocol::ResponseCode;
use remoting::Acceptor;
use remoting::Admission;
use remoting::Channel;
use remoting::ChannelOptions;
use remoting::Connection;
use remoting::Error;
use remoting::Handler;
use remoting::Ignore;
use remoting::Options;
use remoting::Responder;
use remoting::Server;
use remoting::ServerHandle;
use remoting::Settings;
use remoting::Stream;
use remoting::bind;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

const LONG: Duration = Duration::from_secs(20);

/// Hands everything to the test.
struct Hand {
    requests: mpsc::Sender<(RemotingCommand, Responder)>,
    opened: AtomicUsize,
    closed: mpsc::Sender<Connection>,
}

impl Handler for Hand {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        self.requests.try_send((request, responder)).expect("the test keeps up");
    }

    fn opened(&self, _connection: &Connection) {
        self.opened.fetch_add(1, Ordering::SeqCst);
    }

    fn closed(&self, connection: &Connection) {
        drop(self.closed.try_send(connection.clone()));
    }
}

/// Answers with the same body.
struct Echo;

impl Handler for Echo {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        let answer = RemotingCommand::response_to(&request, ResponseCode::SUCCESS).with_body(request.body);
        responder.send(answer);
    }
}

struct Fixture {
    server: ServerHandle,
    requests: mpsc::Receiver<(RemotingCommand, Responder)>,
    closed: mpsc::Receiver<Connection>,
    hand: Arc<Hand>,
}

fn options(change: impl FnOnce(&mut Settings)) -> Options {
    let mut settings = Settings::default();
    change(&mut settings);
    Options::new(settings).unwrap()
}

fn local() -> std::net::TcpListener {
    bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap()
}

fn fixture(options: Options) -> Fixture {
    let (requests, received) = mpsc::channel(10_000);
    let (closed, ended) = mpsc::channel(10_000);
    let hand = Arc::new(Hand { requests, opened: AtomicUsize::new(0), closed });
    let server = Server::new(options, hand.clone()).start(local()).unwrap();
    Fixture { server, requests: received, closed: ended, hand }
}

fn channel(server: &ServerHandle) -> Channel {
    Channel::new(server.local_addr().to_string(), ChannelOptions::default(), Arc::new(Ignore))
}

fn request(body: impl Into<Bytes>) -> RemotingCommand {
    RemotingCommand::request(RequestCode::SEND_MESSAGE_V2).with_ext("b", "T").with_body(body)
}

fn answer(request: &RemotingCommand, text: &'static str) -> RemotingCommand {
    RemotingCommand::response_to(request, ResponseCode::SUCCESS).with_body(Bytes::from_static(text.as_bytes()))
}

fn frame(command: &RemotingCommand) -> BytesMut {
    let mut out = BytesMut::new();
    protocol::encode_frame(command, &mut out);
    out
}

/// Reads one frame; `None` when the peer has closed.
async fn read_frame(stream: &mut TcpStream, buffer: &mut BytesMut) -> Option<RemotingCommand> {
    loop {
        if let Some(command) = protocol::decode_frame(buffer, &FrameLimits::default()).unwrap() {
            return Some(command);
        }
        match stream.read_buf(buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

#[tokio::test]
async fn answers_find_their_requests_in_any_order() {
    let mut f = fixture(Options::default());
    let channel = channel(&f.server);
    let calls: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .map(|text| {
            let channel = channel.clone();
            tokio::spawn(async move { channel.call(request(text), LONG).await.unwrap().body })
        })
        .collect();
    let mut received = Vec::new();
    for _ in 0..3 {
        received.push(f.requests.recv().await.unwrap());
    }
    // Answered backwards, from a thread that knows nothing of tokio.
    std::thread::spawn(move || {
        for (request, responder) in received.into_iter().rev() {
            let body = request.body.clone();
            responder.send(RemotingCommand::response_to(&request, ResponseCode::SUCCESS).with_body(body));
        }
    })
    .join()
    .unwrap();
    for (call, text) in calls.into_iter().zip(["a", "b", "c"]) {
        assert_eq!(call.await.unwrap(), text);
    }
    assert_eq!(f.hand.opened.load(Ordering::SeqCst), 1, "one connection carries them all");
}

#[tokio::test]
async fn oneway_is_not_answered_and_the_next_request_is() {
    let mut f = fixture(Options::default());
    let mut stream = TcpStream::connect(f.server.local_addr()).await.unwrap();
    let mut oneway = request("quiet");
    oneway.opaque = 7;
    oneway.mark_oneway();
    let mut wanted = request("loud");
    wanted.opaque = 8;
    let mut bytes = frame(&oneway);
    bytes.extend_from_slice(&frame(&wanted));
    stream.write_all(&bytes).await.unwrap();
    for _ in 0..2 {
        let (request, responder) = f.requests.recv().await.unwrap();
        responder.send(answer(&request, "yes"));
    }
    let answered = read_frame(&mut stream, &mut BytesMut::new()).await.unwrap();
    assert_eq!((answered.opaque, answered.is_response()), (8, true));
}

#[tokio::test]
async fn answer_made_of_large_and_small_parts_arrives_whole_and_in_order() {
    let mut f = fixture(Options::default());
    let channel = channel(&f.server);
    let parts: Vec<Bytes> = (0_u8..200).map(|i| Bytes::from(vec![i; usize::from(i) * 97])).collect();
    let expected: Vec<u8> = parts.iter().flatten().copied().collect();
    for _ in 0..3 {
        let call = tokio::spawn({
            let channel = channel.clone();
            async move { channel.call(request("pull"), LONG).await.unwrap() }
        });
        let (request, responder) = f.requests.recv().await.unwrap();
        responder.send_parts(RemotingCommand::response_to(&request, ResponseCode::SUCCESS), parts.clone());
        assert!(call.await.unwrap().body == expected);
    }
}

#[tokio::test]
async fn megabytes_both_ways_survive_any_split() {
    let server = Server::new(Options::default(), Arc::new(Echo)).start(local()).unwrap();
    let channel = channel(&server);
    let calls: Vec<_> = (0_u8..16)
        .map(|i| {
            let channel = channel.clone();
            tokio::spawn(async move {
                let body = Bytes::from(vec![i; 300_000 * usize::from(i) / 3 + 1]);
                assert!(channel.call(request(body.clone()), LONG).await.unwrap().body == body);
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    let connection = channel.connected().unwrap();
    assert_eq!(connection.queued_bytes(), 0);
}

#[tokio::test]
async fn malformed_frame_closes_its_connection_and_no_other() {
    let mut f = fixture(Options::default());
    let channel = channel(&f.server);
    let call = tokio::spawn({
        let channel = channel.clone();
        async move { channel.call(request("good"), LONG).await }
    });
    let (good, responder) = f.requests.recv().await.unwrap();
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0, 0, 0, 1, 0, 0, 0, 0],
        &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 2],
        &[0, 0, 0, 8, 0, 0, 0, 4, b'{', b'}', b'{', b'}'],
        &[0, 0, 0, 8, 9, 0, 0, 4, b'{', b'}', b'{', b'}'],
    ] {
        let mut bad = TcpStream::connect(f.server.local_addr()).await.unwrap();
        bad.write_all(garbage).await.unwrap();
        assert!(read_frame(&mut bad, &mut BytesMut::new()).await.is_none(), "{garbage:?}");
        f.closed.recv().await.unwrap();
    }
    responder.send(answer(&good, "still here"));
    assert_eq!(call.await.unwrap().unwrap().body, "still here");
}

#[tokio::test]
async fn panic_in_the_handler_closes_its_connection_and_no_other() {
    struct Panics;
    impl Handler for Panics {
        fn handle(&self, request: RemotingCommand, responder: Responder) {
            assert!(request.body != "boom", "boom");
            Echo.handle(request, responder);
        }
    }
    let server = Server::new(Options::default(), Arc::new(Panics)).start(local()).unwrap();
    let (a, b) = (channel(&server), channel(&server));
    assert_eq!(a.call(request("fine"), LONG).await.unwrap().body, "fine");
    assert!(matches!(b.call(request("boom"), LONG).await, Err(Error::Lost { .. })));
    assert_eq!(a.call(request("fine"), LONG).await.unwrap().body, "fine");
    assert_eq!(b.call(request("again"), LONG).await.unwrap().body, "again");
}

#[tokio::test]
async fn reading_stops_at_the_in_flight_limit_and_goes_on_below_it() {
    let mut f = fixture(options(|s| s.in_flight_requests_max = 4));
    let mut stream = TcpStream::connect(f.server.local_addr()).await.unwrap();
    let mut bytes = BytesMut::new();
    for opaque in 1..=10 {
        let mut command = request("x");
        command.opaque = opaque;
        protocol::encode_frame(&command, &mut bytes);
    }
    stream.write_all(&bytes).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(f.requests.recv().await.unwrap());
    }
    // The reader is at its gate: whatever it has yet to do, it cannot hand over a fifth request.
    tokio::task::yield_now().await;
    assert!(f.requests.try_recv().is_err());
    let mut seen = 4;
    let mut buffer = BytesMut::new();
    while seen < 10 {
        for (request, responder) in held.drain(..) {
            responder.send(answer(&request, "ok"));
        }
        held.push(f.requests.recv().await.unwrap());
        seen += 1;
        while let Ok(more) = f.requests.try_recv() {
            held.push(more);
            seen += 1;
        }
        assert!(held.len() <= 4);
    }
    for (request, responder) in held {
        responder.send(answer(&request, "ok"));
    }
    for opaque in 1..=10 {
        assert_eq!(read_frame(&mut stream, &mut buffer).await.unwrap().opaque, opaque);
    }
}

#[tokio::test]
async fn in_flight_bytes_of_one_connection_do_not_stop_another_but_the_total_does() {
    let settings = options(|s| {
        s.in_flight_bytes_max = 1_000_000;
        s.in_flight_bytes_total_max = 1_500_000;
    });
    let mut f = fixture(settings);
    let big = || Bytes::from(vec![1; 1_000_000]);
    let (a, b, c) = (channel(&f.server), channel(&f.server), channel(&f.server));
    let call = |channel: &Channel, body: Bytes| {
        let channel = channel.clone();
        tokio::spawn(async move { channel.call(request(body), LONG).await.unwrap().body })
    };
    let first = call(&a, big());
    let held_a = f.requests.recv().await.unwrap();
    let second = call(&b, big());
    let held_b = f.requests.recv().await.unwrap();
    let third = call(&c, Bytes::from_static(b"small"));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(f.requests.try_recv().is_err(), "the total is used up");
    held_a.1.send(answer(&held_a.0, "a"));
    let held_c = f.requests.recv().await.unwrap();
    held_b.1.send(answer(&held_b.0, "b"));
    held_c.1.send(answer(&held_c.0, "c"));
    assert_eq!(
        (first.await.unwrap(), second.await.unwrap(), third.await.unwrap()),
        ("a".into(), "b".into(), "c".into())
    );
}

#[tokio::test(start_paused = true)]
async fn peer_that_does_not_read_is_no_longer_read_and_then_closed() {
    struct Big(AtomicUsize);
    impl Handler for Big {
        fn handle(&self, request: RemotingCommand, responder: Responder) {
            self.0.fetch_add(1, Ordering::SeqCst);
            let body = Bytes::from(vec![0; 100_000]);
            responder.send(RemotingCommand::response_to(&request, ResponseCode::SUCCESS).with_body(body));
        }
    }
    let handler = Arc::new(Big(AtomicUsize::new(0)));
    let settings = options(|s| {
        s.outbound_bytes_max = 1_000_000;
        s.idle_max = Duration::from_secs(1_000);
    });
    let server = Server::new(settings, handler.clone()).start(local()).unwrap();
    let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
    let started = Instant::now();
    let bytes = frame(&request("x"));
    // Ends with an error: the server closes while we still send.
    while stream.write_all(&bytes).await.is_ok() {}
    let handled = handler.0.load(Ordering::SeqCst);
    assert!(handled < 400, "{handled} answers of 100 kB are more than the queue and the socket hold");
    assert!(started.elapsed() >= Duration::from_secs(30), "{:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(40), "{:?}", started.elapsed());
}

/// Gives every connection this end of a pipe instead of its socket: its time is the test's alone.
struct Pipe(std::sync::Mutex<Option<tokio::io::DuplexStream>>);

impl Acceptor for Pipe {
    fn accept(
        &self,
        _stream: TcpStream,
        _peer: SocketAddr,
    ) -> std::pin::Pin<Box<dyn Future<Output = std::io::Result<Stream>> + Send + '_>> {
        let end = self.0.lock().unwrap().take();
        Box::pin(async move { Ok(Stream::Boxed(Box::new(end.ok_or(std::io::ErrorKind::NotConnected)?))) })
    }
}

#[tokio::test(start_paused = true)]
async fn peer_that_reads_too_little_is_closed_and_lets_go_of_its_answer() {
    /// What an answer is made of; tells when nobody holds it any more.
    struct Lent(Option<tokio::sync::oneshot::Sender<()>>);
    impl AsRef<[u8]> for Lent {
        fn as_ref(&self) -> &[u8] {
            static BYTES: [u8; 4 << 20] = [7; 4 << 20];
            &BYTES
        }
    }
    impl Drop for Lent {
        fn drop(&mut self) {
            let _ = self.0.take().map(|gone| gone.send(()));
        }
    }
    let (ours, theirs) = tokio::io::duplex(16 << 10);
    let (requests, mut received) = mpsc::channel(1);
    let (closed, _ended) = mpsc::channel(1);
    let hand = Arc::new(Hand { requests, opened: AtomicUsize::new(0), closed });
    let pipe = Arc::new(Pipe(std::sync::Mutex::new(Some(theirs))));
    let server = Server::new(Options::default(), hand).with_acceptor(pipe).start(local()).unwrap();
    let _connection = TcpStream::connect(server.local_addr()).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(ours);
    writer.write_all(&frame(&request("x"))).await.unwrap();
    let (command, responder) = received.recv().await.unwrap();
    let (gone, mut is_gone) = tokio::sync::oneshot::channel();
    let started = Instant::now();
    let head = RemotingCommand::response_to(&command, ResponseCode::SUCCESS);
    responder.send_parts(head, vec![Bytes::from_owner(Lent(Some(gone)))]);
    // A little every five seconds: there is always progress.
    let mut drip = tokio::time::interval(Duration::from_secs(5));
    let mut some = vec![0; 16 << 10];
    loop {
        tokio::select! {
            _ = drip.tick() => assert!(started.elapsed() < Duration::from_secs(100), "it is still held"),
            _ = &mut is_gone => break,
        }
        assert!(reader.read(&mut some).await.unwrap() > 0);
    }
    assert_eq!(started.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn connection_without_a_frame_is_closed_after_ten_seconds() {
    let f = fixture(Options::default());
    let started = Instant::now();
    let mut stream = TcpStream::connect(f.server.local_addr()).await.unwrap();
    assert!(read_frame(&mut stream, &mut BytesMut::new()).await.is_none());
    let seconds = started.elapsed().as_secs_f64();
    assert!((10.0..12.5).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn frame_that_comes_too_slowly_is_cut_off() {
    let f = fixture(Options::default());
    let mut stream = TcpStream::connect(f.server.local_addr()).await.unwrap();
    let ping = frame(&request("x"));
    let mut f_requests = f.requests;
    stream.write_all(&ping).await.unwrap();
    f_requests.recv().await.unwrap();
    // A frame of a million bytes, of which a hundred come each second.
    let slow = frame(&request(vec![0; 1_000_000]));
    let started = Instant::now();
    let mut sent = 0;
    let (mut reading, mut writing) = stream.split();
    let mut byte = [0; 1];
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = reading.read(&mut byte) => break,
            _ = tick.tick() => {
                drop(writing.write_all(&slow[sent..sent + 100]).await);
                sent += 100;
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    assert!((10.0..13.5).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn idle_connection_is_closed_after_two_minutes_without_traffic() {
    let server = Server::new(Options::default(), Arc::new(Echo)).start(local()).unwrap();
    let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
    let mut buffer = BytesMut::new();
    // Traffic once a minute keeps it.
    for _ in 0..5 {
        stream.write_all(&frame(&request("x"))).await.unwrap();
        read_frame(&mut stream, &mut buffer).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let last = Instant::now();
    assert!(read_frame(&mut stream, &mut buffer).await.is_none());
    let seconds = last.elapsed().as_secs_f64();
    assert!((58.0..63.0).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn connections_over_the_limits_are_refused() {
    let f = fixture(options(|s| {
        s.connections_max = 3;
        s.connections_per_address_max = 2;
    }));
    let (a, b) = (channel(&f.server), channel(&f.server));
    let mut requests = f.requests;
    let mut streams = Vec::new();
    for channel in [&a, &b] {
        streams.push(channel.connect(LONG).await.unwrap());
        channel.send_oneway(request("x"), LONG).await.unwrap();
        requests.recv().await.unwrap();
    }
    let mut third = TcpStream::connect(f.server.local_addr()).await.unwrap();
    assert!(read_frame(&mut third, &mut BytesMut::new()).await.is_none());
    a.close(LONG).await;
    let mut closed = f.closed;
    closed.recv().await.unwrap();
    // The slot is given back once the connection is gone entirely, a moment after the handler was told.
    while channel(&f.server)
        .call(request("x"), Duration::from_millis(500))
        .await
        .is_err_and(|error| !matches!(error, Error::Timeout { .. }))
    {}
    requests.recv().await.unwrap();
}

#[tokio::test]
async fn two_servers_share_one_admission() {
    let options = options(|s| {
        s.connections_max = 1;
        s.connections_per_address_max = 1;
    });
    let admission = Arc::new(Admission::new(&options));
    let start =
        || Server::new(options.clone(), Arc::new(Echo)).with_admission(admission.clone()).start(local()).unwrap();
    let (first, second) = (start(), start());
    let a = channel(&first);
    a.call(request("x"), LONG).await.unwrap();
    assert_eq!(admission.connections(), 1);
    assert!(channel(&second).call(request("x"), LONG).await.is_err());
}

#[tokio::test]
async fn server_asks_its_client_over_the_same_connection() {
    let mut f = fixture(Options::default());
    let channel = Channel::new(f.server.local_addr().to_string(), ChannelOptions::default(), Arc::new(Echo));
    channel.send_oneway(request("hello"), LONG).await.unwrap();
    let (_, responder) = f.requests.recv().await.unwrap();
    let connection = responder.connection().unwrap().clone();
    assert_eq!(connection.call(request("who are you"), LONG).await.unwrap().body, "who are you");
    connection.send_oneway(request("rebalance")).unwrap();
    // A client that goes away fails what waits for it.
    let asked = connection.clone();
    channel.close(LONG).await;
    assert!(matches!(asked.call(request("?"), LONG).await, Err(Error::Lost { .. } | Error::Closed { .. })));
    f.closed.recv().await.unwrap();
    assert!(!connection.is_open());
    assert!(matches!(connection.send_oneway(request("?")), Err(Error::Closed { .. })));
}

#[tokio::test]
async fn calls_in_flight_fail_at_once_when_the_connection_closes_and_the_next_use_dials_again() {
    let mut f = fixture(Options::default());
    let channel = channel(&f.server);
    let call = tokio::spawn({
        let channel = channel.clone();
        async move { channel.call(request("x"), LONG).await }
    });
    let (_, responder) = f.requests.recv().await.unwrap();
    responder.connection().unwrap().close();
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(!error.not_sent());
    let call = tokio::spawn({
        let channel = channel.clone();
        async move { channel.call(request("y"), LONG).await }
    });
    let (second, responder) = f.requests.recv().await.unwrap();
    responder.send(answer(&second, "back"));
    assert_eq!(call.await.unwrap().unwrap().body, "back");
    assert_eq!(f.hand.opened.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn call_without_an_answer_times_out_and_leaves_nothing_behind() {
    let mut f = fixture(Options::default());
    let channel = channel(&f.server);
    let started = Instant::now();
    let error = channel.call(request("x"), Duration::from_secs(3)).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert_eq!(started.elapsed().as_secs(), 3);
    // Nothing came back in that time, so the connection counts as dead and the next call makes a new one.
    let (_, responder) = f.requests.recv().await.unwrap();
    assert!(!channel.connected().is_some_and(|connection| connection.is_open()));
    drop(responder);
    let call = tokio::spawn({
        let channel = channel.clone();
        async move { channel.call(request("y"), LONG).await }
    });
    let (second, responder) = f.requests.recv().await.unwrap();
    responder.send(answer(&second, "ok"));
    assert!(call.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn callbacks_get_answers_and_time_outs_and_losses() {
    let mut f = fixture(Options::default());
    let channel = channel(&f.server);
    channel.connect(LONG).await.unwrap();
    let (done, mut results) = mpsc::channel(10);
    let call = |text: &'static str, seconds| {
        let done = done.clone();
        channel.call_with(request(text), Duration::from_secs(seconds), move |result| {
            drop(done.try_send((text, result.map(|answer| answer.body))));
        });
    };
    call("late", 2);
    call("answered", 2);
    call("lost", 1_000);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(f.requests.recv().await.unwrap());
    }
    let lost = held.pop().unwrap();
    let (answered, responder) = held.pop().unwrap();
    responder.send(answer(&answered, "yes"));
    let (text, result) = results.recv().await.unwrap();
    assert_eq!((text, result.unwrap()), ("answered", "yes".into()));
    let (text, result) = results.recv().await.unwrap();
    assert!(text == "late" && matches!(result, Err(Error::Timeout { .. })));
    lost.1.connection().unwrap().close();
    let (text, result) = results.recv().await.unwrap();
    assert!(text == "lost" && matches!(result, Err(Error::Lost { .. })));
    channel
        .call_with(request("x"), LONG, move |result| drop(done.try_send(("closed", result.map(|answer| answer.body)))));
    let (text, result) = results.recv().await.unwrap();
    assert!(text == "closed" && result.is_err_and(|error| error.not_sent()));
}

#[tokio::test]
async fn refused_dial_is_told_at_once_and_nothing_was_sent() {
    let listener = local();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let channel = Channel::new(address.to_string(), ChannelOptions::default(), Arc::new(Ignore));
    let error = channel.call(request("x"), LONG).await.unwrap_err();
    assert!(error.not_sent() && matches!(error, Error::Connect { .. }), "{error}");
}

#[tokio::test]
async fn shutdown_answers_what_is_in_flight_and_accepts_nothing_new() {
    let mut f = fixture(Options::default());
    let address = f.server.local_addr();
    let channel = channel(&f.server);
    let call = tokio::spawn({
        let channel = channel.clone();
        async move { channel.call(request("x"), LONG).await }
    });
    let idle = TcpStream::connect(address).await.unwrap();
    let (held, responder) = f.requests.recv().await.unwrap();
    let shutdown = tokio::spawn(f.server.shutdown(LONG));
    // The idle connection goes first, which shows that draining has begun.
    let mut idle = idle;
    assert!(read_frame(&mut idle, &mut BytesMut::new()).await.is_none());
    assert!(!shutdown.is_finished());
    responder.send(answer(&held, "last"));
    assert_eq!(call.await.unwrap().unwrap().body, "last");
    shutdown.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_longer_than_told() {
    let mut f = fixture(Options::default());
    let channel = channel(&f.server);
    let call = tokio::spawn(async move { channel.call(request("x"), Duration::from_secs(1_000)).await });
    let (_, responder) = f.requests.recv().await.unwrap();
    let started = Instant::now();
    f.server.shutdown(Duration::from_secs(5)).await;
    assert_eq!(started.elapsed().as_secs(), 5);
    assert!(matches!(call.await.unwrap(), Err(Error::Lost { .. })));
    assert!(!responder.is_wanted());
}

#[tokio::test]
async fn stream_wrapped_by_an_acceptor_carries_frames() {
    struct Wrap;
    impl Acceptor for Wrap {
        fn accept(
            &self,
            mut stream: TcpStream,
            _peer: SocketAddr,
        ) -> std::pin::Pin<Box<dyn Future<Output = std::io::Result<Stream>> + Send + '_>> {
            Box::pin(async move {
                let mut hello = [0; 5];
                stream.read_exact(&mut hello).await?;
                if &hello != b"hello" {
                    return Err(std::io::ErrorKind::InvalidData.into());
                }
                Ok(Stream::Boxed(Box::new(tokio::io::BufStream::new(stream))))
            })
        }
    }
    let server = Server::new(Options::default(), Arc::new(Echo)).with_acceptor(Arc::new(Wrap)).start(local()).unwrap();
    let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let body = Bytes::from(vec![5; 100_000]);
    stream.write_all(&frame(&request(body.clone()))).await.unwrap();
    assert!(read_frame(&mut stream, &mut BytesMut::new()).await.unwrap().body == body);
    let mut rude = TcpStream::connect(server.local_addr()).await.unwrap();
    rude.write_all(b"hallo").await.unwrap();
    assert!(read_frame(&mut rude, &mut BytesMut::new()).await.is_none());
}

#[tokio::test]
async fn detached_responder_gives_the_whole_answer_to_its_owner() {
    let (done, result) = tokio::sync::oneshot::channel();
    let mut asked = request("x");
    asked.opaque = 99;
    let origin = SocketAddr::from(([10, 0, 0, 9], 4711));
    let responder = Responder::detached(&asked, origin, move |answer| drop(done.send(answer)));
    assert_eq!(responder.peer_addr(), origin);
    let parts = vec![Bytes::from_static(b"b"), Bytes::from_static(b"c")];
    responder.send_parts(answer(&asked, "a"), parts);
    let answered = result.await.unwrap();
    assert_eq!((answered.opaque, answered.body), (99, "abc".into()));
}
