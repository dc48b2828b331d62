import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.filter.util.BloomFilter;
import org.apache.rocketmq.filter.util.BloomFilterData;

/** A line is an expression and property strings, each in base64, with blanks between; the answer has one letter for each
 * property string (T, F, N: unknown, X: it failed), or E where the expression is refused. "bloom" and a text in base64: its
 * bits in the Bloom filter of a broker with default settings. */
public class SqlOracle {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, "US-ASCII");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            out.println(words[0].equals("bloom") ? bits(text(words[1])) : answer(words));
            out.flush();
        }
    }

    private static String text(String base64) {
        return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
    }

    private static String bits(String text) {
        BloomFilterData data = BloomFilter.createByFn(20, 32).generate(text);
        return data.getBitNum() + Arrays.toString(data.getBitPos());
    }

    private static String answer(String[] words) {
        Expression expression;
        try {
            expression = SelectorParser.parse(text(words[0]));
        } catch (Throwable refused) {
            return "E";
        }
        StringBuilder answer = new StringBuilder();
        for (int i = 1; i < words.length; i++) {
            Map<String, String> properties = MessageDecoder.string2messageProperties(text(words[i]));
            Object value;
            try {
                value = expression.evaluate(new EvaluationContext() {
                    @Override
                    public Object get(String name) {
                        return properties.get(name);
                    }

                    @Override
                    public Map<String, Object> keyValues() {
                        return null;
                    }
                });
            } catch (Throwable failed) {
                answer.append('X');
                continue;
            }
            answer.append(value == null ? 'N' : value == Boolean.TRUE ? 'T' : value == Boolean.FALSE ? 'F' : '?');
        }
        return answer.toString();
    }
}
