import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Map;
import java.util.TreeMap;

/** Arguments: classes. Prints each property that MixAll.properties2Object could set, or that a field has: name, type, default. */
public class Keys {
    public static void main(String[] classes) throws Exception {
        for (String name : classes) {
            Class<?> kind = Class.forName(name);
            Object made = kind.getDeclaredConstructor().newInstance();
            Map<String, String> found = new TreeMap<>();
            for (Class<?> at = kind; at != Object.class; at = at.getSuperclass()) {
                for (Field field : at.getDeclaredFields()) {
                    if (!Modifier.isStatic(field.getModifiers())) {
                        field.setAccessible(true);
                        found.putIfAbsent(field.getName(), field.getType().getSimpleName() + "\t" + field.get(made));
                    }
                }
            }
            for (Method method : kind.getMethods()) {
                if (method.getName().startsWith("set") && method.getParameterCount() == 1) {
                    String property = Character.toLowerCase(method.getName().charAt(3)) + method.getName().substring(4);
                    found.putIfAbsent(property, method.getParameterTypes()[0].getSimpleName() + "\t?");
                }
            }
            found.forEach((property, rest) -> System.out.println("key\t" + property + "\t" + rest));
        }
        System.exit(0);
    }
}
