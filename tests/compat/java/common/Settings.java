// What RocketMQ makes of a broker.conf: the loader and the setters that a broker's start uses, asked value by value.
package mqfast.oracle;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayInputStream;
import java.lang.reflect.Method;
import java.util.Base64;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

final class Settings {
    private Settings() {
    }

    /** One answer a file: every property's value after the setters, or what the loader threw. */
    static Object of(JSONObject request) throws Exception {
        JSONArray answers = new JSONArray();
        for (Object file : request.getJSONArray("files")) {
            JSONObject answer = new JSONObject(true);
            Properties properties = new Properties();
            try {
                properties.load(new ByteArrayInputStream(Base64.getDecoder().decode((String) file)));
            } catch (IllegalArgumentException e) {
                answer.put("refused", String.valueOf(e.getMessage()));
                answers.add(answer);
                continue;
            }
            answer.put("pairs", new TreeMap<Object, Object>(properties));
            NettyServerConfig netty = new NettyServerConfig();
            netty.setListenPort(10911); // as BrokerStartup does before
            MessageStoreConfig store = new MessageStoreConfig();
            Map<String, Object> values = new TreeMap<>();
            for (Object config : new Object[] {new BrokerConfig(), netty, store}) {
                MixAll.properties2Object(properties, config);
                values.putAll(getters(config));
            }
            answer.put("values", values);
            try {
                UtilAll.isItTimeToDo(store.getDeleteWhen());
                answer.put("deleteWhen", "read"); // up to the hour of now, at least
            } catch (NumberFormatException e) {
                answer.put("deleteWhen", "refused");
            }
            answers.add(answer);
        }
        return answers;
    }

    private static Map<String, Object> getters(Object config) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (Method method : config.getClass().getMethods()) {
            String name = method.getName();
            int cut = name.startsWith("get") ? 3 : name.startsWith("is") ? 2 : 0;
            if (cut == 0 || name.length() == cut || method.getParameterCount() != 0) {
                continue;
            }
            Class<?> type = method.getReturnType();
            if (type.isPrimitive() || type == String.class || type.isEnum()) {
                Object value = method.invoke(config);
                String property = Character.toLowerCase(name.charAt(cut)) + name.substring(cut + 1);
                found.put(property, type.isEnum() ? String.valueOf(value) : value);
            }
        }
        return found;
    }
}
