import com.google.gson.Gson;
import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.Map;
import java.util.Properties;
import java.util.stream.IntStream;

/**
 * Sends events: one with its order, a batch, and one to whoever asked for it.
 *
 * <p>Environment: DATABASE_URL.
 */
public class Producer {
    static final Gson JSON = new Gson();

    public static void main(String[] args) throws SQLException {
        try (var db = connect(System.getenv("DATABASE_URL"))) {
            try (var statement = db.createStatement()) {
                statement.execute("""
                    create table if not exists orders (
                        id          bigint generated always as identity primary key,
                        customer    text not null,
                        total_cents integer not null
                    )""");
            }
            System.out.println("order " + createOrder(db, "Ada", 4200) + " is queued");
            var prices = Map.of("lamp", 1900, "desk", 24900, "chair", 9900);
            System.out.println(announcePrices(db, 7, prices) + " prices are queued");
            System.out.println("published to " + publishOpening(db, 3, "Z\u00fcrich") + " endpoints");
        }
    }

    /** In the transaction that makes the event true: both are committed, or neither. */
    static long createOrder(Connection db, String customer, int totalCents) throws SQLException {
        db.setAutoCommit(false);
        try (var order = db.prepareStatement("insert into orders (customer, total_cents) values (?, ?) returning id");
             var delivery = db.prepareStatement("""
                 insert into postrider.deliveries (endpoint, event_type, event_id, payload)
                 values ('crm', 'order.created', ?, ?::json)""")) {
            order.setString(1, customer);
            order.setInt(2, totalCents);
            long id;
            try (var row = order.executeQuery()) {
                row.next();
                id = row.getLong(1);
            }
            delivery.setString(1, "order-" + id + "-created");
            delivery.setString(2, event("order.created", Map.of("id", id, "total_cents", totalCents)));
            delivery.executeUpdate();
            db.commit();
            return id;
        } catch (SQLException error) {
            db.rollback();
            throw error;
        } finally {
            db.setAutoCommit(true);
        }
    }

    /** The event ids name the work, not the run: a job that runs again sends nothing twice. */
    static int announcePrices(Connection db, int listNo, Map<String, Integer> prices) throws SQLException {
        try (var insert = db.prepareStatement("""
                insert into postrider.deliveries (endpoint, event_type, event_id, payload)
                values ('crm', 'price.changed', ?, ?::json)
                on conflict (endpoint, event_id) do nothing""")) {
            for (var price : prices.entrySet()) {
                insert.setString(1, "prices-" + listNo + "-" + price.getKey());
                insert.setString(2, event("price.changed", Map.of("item", price.getKey(), "cents", price.getValue())));
                insert.addBatch();
            }
            return IntStream.of(insert.executeBatch()).sum();
        }
    }

    /** To every endpoint that asked for such events, whatever their names. */
    static int publishOpening(Connection db, int shopNo, String city) throws SQLException {
        try (var publish = db.prepareStatement("select postrider.publish('shop.opened', ?::json, ?)")) {
            publish.setString(1, event("shop.opened", Map.of("city", city)));
            publish.setString(2, "shop-opened-" + shopNo);
            try (var row = publish.executeQuery()) {
                row.next();
                return row.getInt(1);
            }
        }
    }

    /** The payload, which is sent byte for byte as it is written here. */
    static String event(String type, Map<String, ?> data) {
        return JSON.toJson(Map.of("type", type, "data", data));
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
