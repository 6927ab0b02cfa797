import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import com.sun.net.httpserver.Headers;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Instant;
import java.util.Base64;
import java.util.Properties;
import java.util.concurrent.Executors;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * Receives webhooks: verifies each request, does its work once, and answers.
 *
 * <p>Environment: WEBHOOK_SECRET (whsec_...), PORT (9000), DATABASE_URL.
 */
public class Receiver {
    static final int LARGEST_BODY = 1 << 20;
    static final long TOLERANCE = 5 * 60;

    static final SecretKeySpec KEY = new SecretKeySpec(
        Base64.getDecoder().decode(System.getenv("WEBHOOK_SECRET").replaceFirst("^whsec_", "")), "HmacSHA256");

    public static void main(String[] args) throws IOException, SQLException {
        try (var db = connect(System.getenv("DATABASE_URL")); var statement = db.createStatement()) {
            statement.execute("""
                create table if not exists seen_webhooks (
                    webhook_id  text primary key,
                    received_at timestamptz not null default now() -- older than your longest retry: can go
                )""");
            statement.execute(
                "create table if not exists received_events (event_type text not null, body text not null)");
        }
        var port = Integer.parseInt(System.getenv().getOrDefault("PORT", "9000"));
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.createContext("/", exchange -> {
            try (exchange) {
                exchange.sendResponseHeaders(receive(exchange), -1);
            }
        });
        server.start();
    }

    /** The status code of the answer. 5xx: it comes again; 4xx: it does not. */
    static int receive(HttpExchange exchange) throws IOException {
        if (!exchange.getRequestMethod().equals("POST")) {
            return 405;
        }
        var body = exchange.getRequestBody().readNBytes(LARGEST_BODY + 1);
        if (body.length > LARGEST_BODY) {
            return 413;
        }
        try {
            if (!verified(exchange.getRequestHeaders(), body)) {
                return 401;
            }
            var text = new String(body, StandardCharsets.UTF_8);
            var type = type(text);
            if (type == null) {
                return 400;
            }
            once(exchange.getRequestHeaders().getFirst("webhook-id"), type, text);
            return 204;
        } catch (SQLException error) {
            System.err.println(error.getMessage());
            return 503;
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("every JDK has HmacSHA256", error);
        }
    }

    static boolean verified(Headers headers, byte[] body) throws GeneralSecurityException {
        var id = headers.getFirst("webhook-id");
        var timestamp = headers.getFirst("webhook-timestamp");
        var signatures = headers.getFirst("webhook-signature");
        if (id == null || signatures == null || timestamp == null || !timestamp.matches("[0-9]{1,18}")) {
            return false;
        }
        // An old request may be somebody's recording of it.
        if (Math.abs(Instant.now().getEpochSecond() - Long.parseLong(timestamp)) > TOLERANCE) {
            return false;
        }
        // Over the very bytes: a body that was parsed and written again has others.
        var mac = Mac.getInstance("HmacSHA256");
        mac.init(KEY);
        mac.update((id + "." + timestamp + ".").getBytes(StandardCharsets.ISO_8859_1));
        var expected = ("v1," + Base64.getEncoder().encodeToString(mac.doFinal(body))).getBytes(StandardCharsets.ISO_8859_1);
        // There are several while a secret is being changed; one that fits is enough.
        for (var one : signatures.split(" ")) {
            if (MessageDigest.isEqual(expected, one.getBytes(StandardCharsets.ISO_8859_1))) {
                return true;
            }
        }
        return false;
    }

    /**
     * The id is noted in the transaction that does the work: both are committed, or neither. A connection for each
     * request keeps this short; a pool is faster.
     */
    static void once(String id, String type, String body) throws SQLException {
        try (var db = connect(System.getenv("DATABASE_URL"))) {
            db.setAutoCommit(false);
            try (var seen = db.prepareStatement(
                    "insert into seen_webhooks (webhook_id) values (?) on conflict do nothing")) {
                seen.setString(1, id);
                if (seen.executeUpdate() == 1) {
                    work(db, type, body);
                }
            }
            db.commit(); // What is closed uncommitted is rolled back.
        }
    }

    /** Yours. What takes longer than some seconds should only be queued here. */
    static void work(Connection db, String type, String body) throws SQLException {
        try (var insert = db.prepareStatement("insert into received_events (event_type, body) values (?, ?)")) {
            insert.setString(1, type);
            insert.setString(2, body);
            insert.executeUpdate();
        }
    }

    /** The event's type; null when there is none. */
    static String type(String body) {
        try {
            var event = JsonParser.parseString(body);
            return event.isJsonObject() && event.getAsJsonObject().get("type") instanceof JsonPrimitive type
                ? type.getAsString() : null;
        } catch (JsonParseException error) {
            return null;
        }
    }

    /** JDBC wants user and password apart from the URL. */
    static Connection connect(String databaseUrl) throws SQLException {
        var url = URI.create(databaseUrl);
        var properties = new Properties();
        if (url.getUserInfo() != null) {
            var user = url.getUserInfo().split(":", 2);
            properties.setProperty("user", user[0]);
            if (user.length == 2) {
                properties.setProperty("password", user[1]);
            }
        }
        var port = url.getPort() == -1 ? 5432 : url.getPort();
        var query = url.getRawQuery() == null ? "" : "?" + url.getRawQuery();
        return DriverManager.getConnection(
            "jdbc:postgresql://" + url.getHost() + ":" + port + url.getRawPath() + query, properties);
    }
}
