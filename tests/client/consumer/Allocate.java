import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads one JSON object a line: a strategy, queues and members. Prints Java's answer for each member, or its exception. */
public class Allocate {
    static List<MessageQueue> queues(JSONArray rows) {
        List<MessageQueue> found = new ArrayList<>();
        for (int i = 0; i < rows.size(); i++) {
            JSONArray row = rows.getJSONArray(i);
            found.add(new MessageQueue(row.getString(0), row.getString(1), row.getIntValue(2)));
        }
        return found;
    }

    static String room(String name) {
        int at = name.indexOf('@');
        return at < 0 ? "" : name.substring(0, at);
    }

    static AllocateMessageQueueStrategy strategy(String name, JSONObject line) {
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            case "CONFIG": {
                AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
                config.setMessageQueueList(queues(line.getJSONArray("config")));
                return config;
            }
            case "MACHINE_ROOM": {
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(line.getJSONArray("rooms").toJavaList(String.class)));
                return rooms;
            }
            default: {
                String inner = name.substring("MACHINE_ROOM_NEARBY-".length());
                return new AllocateMachineRoomNearby(strategy(inner, line), new AllocateMachineRoomNearby.MachineRoomResolver() {
                    public String brokerDeployIn(MessageQueue queue) {
                        return room(queue.getBrokerName());
                    }

                    public String consumerDeployIn(String clientId) {
                        return room(clientId);
                    }
                });
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String text = in.readLine(); text != null; text = in.readLine()) {
            JSONObject line = JSON.parseObject(text);
            List<MessageQueue> all = queues(line.getJSONArray("queues"));
            List<String> members = line.getJSONArray("members").toJavaList(String.class);
            Collections.sort(all);
            Collections.sort(members);
            AllocateMessageQueueStrategy strategy = strategy(line.getString("strategy"), line);
            JSONObject answers = new JSONObject(true);
            List<String> askers = new ArrayList<>(members);
            askers.add("a stranger@none");
            for (String me : askers) {
                try {
                    List<List<Object>> rows = new ArrayList<>();
                    for (MessageQueue queue : strategy.allocate("group", me, all, members)) {
                        rows.add(List.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()));
                    }
                    answers.put(me, rows);
                } catch (IllegalArgumentException refused) {
                    answers.put(me, refused.getMessage());
                }
            }
            JSONObject answer = new JSONObject(true);
            answer.put("name", strategy.getName());
            answer.put("members", members);
            answer.put("answers", answers);
            byte[] out = (answer.toJSONString() + "\n").getBytes(StandardCharsets.UTF_8);
            System.out.write(out, 0, out.length);
            System.out.flush();
        }
    }
}
