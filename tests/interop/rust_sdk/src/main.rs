// The official Rust SDK (rocketmq 5.0.0) against a broker: sends of every kind, transactions, a simple consumer.
// Arguments: endpoints, then the access key and the secret where there are any, then "tls".
// Prints a line for each proof, then "done". The SDK has no push consumer, no recall and no change of invisible times.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

const WAIT: Duration = Duration::from_secs(60);
const INVISIBLE: Duration = Duration::from_secs(10);

fn client_option(given: &[String]) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(given[0].clone());
    option.set_long_polling_timeout(Duration::from_secs(3));
    option.set_enable_tls(given.get(3).is_some_and(|word| word == "tls"));
    if given.len() > 2 && !given[1].is_empty() {
        option.set_access_key(given[1].clone());
        option.set_secret_key(given[2].clone());
    }
    option
}

fn producer_option(topic: &str) -> ProducerOption {
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    option
}

async fn consumer(given: &[String], topic: &str) -> SimpleConsumer {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic]);
    option.set_consumer_group(format!("rust-{topic}"));
    let mut consumer = SimpleConsumer::new(option, client_option(given)).unwrap();
    consumer.start().await.unwrap();
    receive(&consumer, topic, "*", true).await; // a new group begins at the end of the topic
    consumer
}

async fn receive(consumer: &SimpleConsumer, topic: &str, tag: &str, is_acked: bool) -> Vec<MessageView> {
    let filter = FilterExpression::new(FilterType::Tag, tag);
    let messages = consumer.receive_with(topic, &filter, 32, INVISIBLE).await.unwrap();
    if is_acked {
        for message in &messages {
            consumer.ack(message).await.unwrap();
        }
    }
    messages
}

async fn collect(consumer: &SimpleConsumer, topic: &str, tag: &str, count: usize) -> Vec<MessageView> {
    let until = Instant::now() + WAIT;
    let mut messages = Vec::new();
    while messages.len() < count {
        assert!(Instant::now() < until, "{topic}: {} of {count} messages", messages.len());
        messages.extend(receive(consumer, topic, tag, true).await);
    }
    messages
}

fn bodies(messages: &[MessageView]) -> BTreeSet<String> {
    messages.iter().map(|message| String::from_utf8_lossy(message.body()).into_owned()).collect()
}

fn numbered(count: usize) -> BTreeSet<String> {
    (0..count).map(|number| format!("rust-{number}")).collect()
}

async fn normal(given: &[String]) {
    let consumer = consumer(given, "normal").await;
    let mut producer = Producer::new(producer_option("normal"), client_option(given)).unwrap();
    producer.start().await.unwrap();
    for number in 0..20 {
        let message = MessageBuilder::builder()
            .set_topic("normal")
            .set_tag(if number < 10 { "first" } else { "last" })
            .set_keys(vec![format!("key-{number}")])
            .set_properties(HashMap::from([("colour", "red")]))
            .set_body(format!("rust-{number}").into_bytes())
            .build()
            .unwrap();
        producer.send(message).await.unwrap();
    }
    let messages = collect(&consumer, "normal", "first || last", 20).await;
    assert_eq!(bodies(&messages), numbered(20));
    assert_eq!(messages[0].properties()["colour"], "red");
    println!("a simple consumer gets all messages, with tag, keys and properties");
    producer.shutdown().await.unwrap();
    consumer.shutdown().await.unwrap();
}

async fn again(given: &[String]) {
    let consumer = consumer(given, "simple").await;
    let mut producer = Producer::new(producer_option("simple"), client_option(given)).unwrap();
    producer.start().await.unwrap();
    let message = MessageBuilder::builder().set_topic("simple").set_body(b"rust-again".to_vec()).build().unwrap();
    producer.send(message).await.unwrap();
    let until = Instant::now() + WAIT;
    let mut attempts = Vec::new();
    while attempts.len() < 2 {
        assert!(Instant::now() < until);
        let messages = receive(&consumer, "simple", "*", attempts.len() == 1).await;
        attempts.extend(messages.iter().map(|message| message.delivery_attempt()));
    }
    assert_eq!(attempts, [1, 2]);
    println!("a message without ack comes again");
    producer.shutdown().await.unwrap();
    consumer.shutdown().await.unwrap();
}

async fn fifo(given: &[String]) {
    let consumer = consumer(given, "fifo").await;
    let mut producer = Producer::new(producer_option("fifo"), client_option(given)).unwrap();
    producer.start().await.unwrap();
    for number in 0..20 {
        let body = format!("rust-{number}").into_bytes();
        producer.send(MessageBuilder::fifo_message_builder("fifo", body, "rust").build().unwrap()).await.unwrap();
    }
    let messages = collect(&consumer, "fifo", "*", 20).await;
    assert_eq!(bodies(&messages), numbered(20));
    assert!(messages.iter().all(|message| message.message_group() == Some("rust")));
    println!("messages of a group come");
    producer.shutdown().await.unwrap();
    consumer.shutdown().await.unwrap();
}

async fn delay(given: &[String]) {
    let consumer = consumer(given, "delay").await;
    let mut producer = Producer::new(producer_option("delay"), client_option(given)).unwrap();
    producer.start().await.unwrap();
    let due = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + 3;
    let message = MessageBuilder::delay_message_builder("delay", b"rust-due".to_vec(), due).build().unwrap();
    producer.send(message).await.unwrap();
    let messages = collect(&consumer, "delay", "*", 1).await;
    assert_eq!(bodies(&messages), BTreeSet::from(["rust-due".to_string()]));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    assert!(now >= due - 1, "{now} is before {due}");
    println!("a delayed message comes, not early");
    producer.shutdown().await.unwrap();
    consumer.shutdown().await.unwrap();
}

async fn transactions(given: &[String]) {
    let consumer = consumer(given, "transaction").await;
    let checked = Arc::new(Mutex::new(BTreeSet::new()));
    let noted = checked.clone();
    let mut producer = Producer::new_transaction_producer(
        producer_option("transaction"),
        client_option(given),
        Box::new(move |_, message| {
            noted.lock().unwrap().insert(String::from_utf8_lossy(message.body()).into_owned());
            TransactionResolution::COMMIT
        }),
    )
    .unwrap();
    producer.start().await.unwrap();
    for body in ["rust-committed", "rust-rolled-back", "rust-orphan"] {
        let message = MessageBuilder::transaction_message_builder("transaction", body.as_bytes().to_vec());
        let transaction = producer.send_transaction_message(message.build().unwrap()).await.unwrap();
        match body {
            "rust-committed" => transaction.commit().await.unwrap(),
            "rust-rolled-back" => transaction.rollback().await.unwrap(),
            _ => (),
        }
    }
    let messages = collect(&consumer, "transaction", "*", 2).await;
    assert_eq!(bodies(&messages), BTreeSet::from(["rust-committed".to_string(), "rust-orphan".to_string()]));
    assert_eq!(*checked.lock().unwrap(), BTreeSet::from(["rust-orphan".to_string()]));
    println!("transactions are committed, one after a check");
    producer.shutdown().await.unwrap();
    consumer.shutdown().await.unwrap();
}

#[tokio::main]
async fn main() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    normal(&given).await;
    again(&given).await;
    fifo(&given).await;
    delay(&given).await;
    transactions(&given).await;
    println!("done");
}
