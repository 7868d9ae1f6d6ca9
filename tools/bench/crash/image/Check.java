import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.zip.CRC32;

/** Compiled code, garbage and threads with known results. */
public class Check {
    static void check(long seed) throws Exception {
        Random random = new Random(seed);
        for (int i = 1; i < 200; i++) {
            byte[] bytes = new byte[random.nextInt(20000)];
            random.nextBytes(bytes);
            String text = new String(bytes, StandardCharsets.ISO_8859_1);
            byte[] utf8 = text.getBytes(StandardCharsets.UTF_8);
            CRC32 first = new CRC32(), second = new CRC32();
            first.update(bytes);
            second.update(bytes.clone());
            if (!new String(utf8, StandardCharsets.UTF_8).equals(text)
                    || first.getValue() != second.getValue()
                    || !Arrays.equals(MessageDigest.getInstance("SHA-256").digest(bytes),
                            MessageDigest.getInstance("SHA-256").digest(bytes.clone()))) {
                throw new IllegalStateException("wrong result");
            }
        }
    }

    public static void main(String[] args) throws Exception {
        var pool = Executors.newFixedThreadPool(4);
        Future<?>[] all = new Future<?>[4];
        for (int i = 0; i < all.length; i++) {
            int seed = i;
            all[i] = pool.submit(() -> {
                check(seed);
                return null;
            });
        }
        for (Future<?> one : all) {
            one.get();
        }
        pool.shutdown();
        System.out.println("ok");
    }
}
