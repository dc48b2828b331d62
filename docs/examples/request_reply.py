"""Send a request and wait for the reply of a consumer.

Prints: 144
"""

from mqfast import Message, Producer, PushConsumer

consumer = PushConsumer("squares", from_where="earliest")


@consumer.on("examples-numbers")
def square(message):
    message.reply_sync(str(int(message.text()) ** 2))


with Producer("asks") as producer, consumer:
    print(producer.request(Message("examples-numbers", "12"), timeout_s=30).text())
