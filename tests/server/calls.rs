//! What becomes of one call.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use crate::support::{Answer, Site, eventually, head, post};

const MIB: usize = 1024 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_reaches_the_handler_with_its_path_timeout_and_body() {
    let site = Site::start(&[]);
    let answer = site.post("/policies/a?timeout=5s", b"{}").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "/policies/a Some(5s) 2"));
    assert!(answer.head.contains("content-type: application/json\r\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_address_is_served() {
    let site = Site::start(&["--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0"]);
    assert_eq!(site.addresses.len(), 2);
    for &address in &site.addresses {
        let mut stream = site.connect_to(address).await.unwrap();
        stream.write_all(&post("/", b"{}")).await.unwrap();
        assert_eq!(Answer::read(&mut stream).await.unwrap().status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_admission_call_is_turned_away() {
    let site = Site::start(&[]);
    for (request, status, word) in [
        ("GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "POST"),
        (
            "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
            415,
            "application/json",
        ),
        (
            "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
            415,
            "json",
        ),
    ] {
        let mut stream = site.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = Answer::read(&mut stream).await.unwrap();
        assert_eq!(answer.status, status, "{request}");
        assert!(answer.body.contains(word), "{answer:?}");
    }
    assert_eq!(site.handler.started.load(Ordering::SeqCst), 0);
    assert!(
        site.metrics
            .encode()
            .contains("deployer_guard_http_errors_total{code=\"415\"} 2")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_8_mib_is_read_and_one_byte_more_is_413() {
    let site = Site::start(&[]);
    let body = vec![b' '; 8 * MIB];
    let answer = site.post("/big", &body).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "/big None 8388608"));

    // Refused by its head: nothing of the body was sent.
    let mut stream = site.connect().await;
    let request = format!("{}Content-Length: {}\r\n\r\n", head("/big"), 8 * MIB + 1);
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = Answer::read(&mut stream).await.unwrap();
    assert_eq!(answer.status, 413);
    assert!(answer.body.contains("8388608"), "{answer:?}");

    // And if the client sends all of it regardless, it still gets to read why.
    let (mut read, mut write) = tokio::io::split(site.connect().await);
    let sender = tokio::spawn(async move {
        write.write_all(&post("/big", &vec![b' '; 8 * MIB + 1])).await?;
        write.flush().await
    });
    assert_eq!(Answer::read(&mut read).await.unwrap().status, 413);
    let _ = sender.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunked_body_is_bounded_too() {
    let site = Site::start(&[]);
    for (extra, status) in [(0, 200), (1, 413)] {
        let stream = site.connect().await;
        let (mut read, mut write) = tokio::io::split(stream);
        let sender = tokio::spawn(async move {
            let head = format!("{}Transfer-Encoding: chunked\r\n\r\n", head("/big"));
            write.write_all(head.as_bytes()).await?;
            for _ in 0..8 {
                write.write_all(format!("{MIB:x}\r\n").as_bytes()).await?;
                write.write_all(&vec![b' '; MIB]).await?;
                write.write_all(b"\r\n").await?;
            }
            write
                .write_all(if extra == 1 {
                    b"1\r\n \r\n0\r\n\r\n"
                } else {
                    b"0\r\n\r\n"
                })
                .await?;
            write.flush().await
        });
        assert_eq!(
            Answer::read(&mut read).await.unwrap().status,
            status,
            "8 MiB and {extra}"
        );
        // The server may close before all was written.
        let _ = sender.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_beyond_the_bound_is_answered_at_once_and_undecided() {
    let site = Site::start(&["--max-calls", "1"]);
    let mut slow = site.connect().await;
    slow.write_all(&post("/slow", b"{}")).await.unwrap();
    site.started(1).await;

    let answer = site.post("/other", b"{ }").await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (200, "Overloaded { limit: 1 } 3")
    );
    let metrics = site.metrics.encode();
    assert!(metrics.contains("deployer_guard_overloaded_total 1"), "{metrics}");
    assert!(metrics.contains("deployer_guard_in_flight 1"), "{metrics}");

    site.handler.release.notify_one();
    assert_eq!(Answer::read(&mut slow).await.unwrap().status, 200);
    assert_eq!(site.post("/other", b"{}").await.body, "/other None 2");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_beyond_the_memory_bound_are_answered_with_503_at_once() {
    let site = Site::start(&["--max-body-bytes", "1000", "--max-bodies-bytes", "1500"]);
    let mut slow = site.connect().await;
    slow.write_all(&post("/slow", &[b' '; 600])).await.unwrap();
    site.started(1).await;

    assert_eq!(site.post("/small", &[b' '; 900]).await.status, 200);
    let answer = site.post("/large", &[b' '; 901]).await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("--max-bodies-bytes"), "{answer:?}");
    // Without a length the body counts as the largest, however small it is.
    let mut chunked = site.connect().await;
    let request = format!(
        "{}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n",
        head("/small")
    );
    chunked.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(Answer::read(&mut chunked).await.unwrap().status, 503);

    site.handler.release.notify_one();
    assert_eq!(Answer::read(&mut slow).await.unwrap().status, 200);
    assert_eq!(site.post("/large", &[b' '; 901]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_arrive_within_the_timeout_is_given_up() {
    let site = Site::start(&[]);
    let mut stream = site.connect().await;
    let request = format!("{}Content-Length: 10\r\n\r\n{{", head("/x?timeout=200ms"));
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(Answer::read(&mut stream).await.unwrap().status, 408);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_an_undecided_answer_and_the_server_goes_on() {
    let site = Site::start(&[]);
    let answer = site.post("/panic", b"{}").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "Panicked 2"));
    assert_eq!(site.post("/panic-twice", b"{}").await.status, 500);
    assert_eq!(site.post("/", b"{}").await.status, 200);
    let metrics = site.metrics.encode();
    assert!(metrics.contains("deployer_guard_panics_total 3"), "{metrics}");
    assert!(metrics.contains("deployer_guard_in_flight 0"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_does_not_cancel_the_decision() {
    let site = Site::start(&[]);
    let mut stream = site.connect().await;
    stream.write_all(&post("/slow", b"{}")).await.unwrap();
    site.started(1).await;
    drop(stream);

    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(site.handler.finished.load(Ordering::SeqCst), 0);
    site.handler.release.notify_waiters();
    eventually("the decision finishes", || {
        site.handler.finished.load(Ordering::SeqCst) == 1
    })
    .await;
}

/// An API server speaks HTTP/1.1 to all webhooks but those on its own machine, whatever they offer: then to those, too.
#[tokio::test(flavor = "multi_thread")]
async fn the_protocol_is_the_one_that_api_servers_use_for_services() {
    let site = Site::start(&[]);
    let address = site.addresses[0];
    for offered in [&["h2", "http/1.1"][..], &["http/1.1"], &[]] {
        let mut stream = site.connect_offering(address, offered).await.unwrap();
        let agreed = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        assert_eq!(
            agreed,
            (!offered.is_empty()).then(|| b"http/1.1".to_vec()),
            "{offered:?}"
        );
        stream.write_all(&post("/", b"{}")).await.unwrap();
        assert_eq!(Answer::read(&mut stream).await.unwrap().status, 200);
    }
    assert!(site.connect_offering(address, &["h2"]).await.is_err());
}
