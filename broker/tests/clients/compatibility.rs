//! The page that tells users what works, against what a broker answers.

use protocol::{RemotingCommand, ResponseCode};

use crate::cluster::Cluster;
use crate::requests::{check, message};

const PAGE: &str = include_str!("../../../docs/compatibility.md");

/// Codes and state of each row of the table of requests to a broker.
fn rows() -> Vec<(Vec<i32>, String)> {
    let (_, table) = PAGE.split_once("## Requests to a broker").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Code"));
    // A code that clients are sent is none that they ask for.
    let rows = rows.filter(|line| !line.contains("(to clients)"));
    rows.map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [codes, _, _, state] = cells[..] else { panic!("a row of other than four cells: {line}") };
        // "3001 and on" names the first of many.
        let codes = codes.split(", ").filter_map(|code| code.split(' ').next().unwrap().parse().ok()).collect();
        (codes, state.to_owned())
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_code_of_the_page_is_answered_as_it_says() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    let mut asked = 0;
    for (codes, state) in rows() {
        for code in codes {
            let answer =
                client.call(RemotingCommand { code, ..RemotingCommand::request(protocol::RequestCode(0)) }).await;
            let unknown = answer.response_code() == ResponseCode::REQUEST_CODE_NOT_SUPPORTED;
            match state.split([' ', ':', ';']).next().unwrap() {
                "works" => assert!(!unknown, "{code} works, says the page, but: {answer:?}"),
                "refused" => check(&answer, ResponseCode::NO_PERMISSION.0, &[]),
                "not" => assert!(unknown, "{code} is not served, says the page, but: {answer:?}"),
                other => panic!("a state of {other:?}"),
            }
            asked += 1;
        }
    }
    assert!(asked > 60, "only {asked} codes were found in the table");

    let send = async |properties: &str| client.call(message("T", 0, "body", properties)).await.code;
    assert_eq!(send("DELAY\u{1}3\u{2}").await, 0);
    assert_eq!(send("TIMER_DELAY_MS\u{1}3\u{2}").await, 0);
    assert_eq!(send("TIMER_DEL_UNIQKEY\u{1}TU\u{2}").await, 13);
    assert_eq!(send("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}p\u{2}").await, 0);
    assert_eq!(send("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}p\u{2}DELAY\u{1}3\u{2}").await, 13);
    cluster.stop().await;
}
