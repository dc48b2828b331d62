// A message to be put, in neither release's classes: Release turns it into its own.
package mqfast.oracle;

import java.net.InetSocketAddress;
import java.util.List;
import java.util.Map;

public final class Msg {
    public String topic;
    public int queueId;
    public byte[] body;
    public int flag;
    public int sysFlag;
    public long bornTimestamp;
    public InetSocketAddress bornHost;
    public InetSocketAddress storeHost;
    public int reconsumeTimes;
    public long preparedTransactionOffset;
    public Map<String, String> properties;
    public String propertiesString;
    public List<Msg> batch;
}
