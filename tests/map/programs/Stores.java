// SPDX-License-Identifier: MIT OR Apache-2.0
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Map;
import java.util.TreeMap;

/** Programs in Java that keep numbers; as stores.py. */
public class Stores {
	interface Store {
		void put(int n) throws Exception;

		Map<Integer, String> all() throws Exception;
	}

	static final Map<String, String> URLS = Map.of(
		"h2", "jdbc:h2:file:DIR/h2;WRITE_DELAY=0;DB_CLOSE_ON_EXIT=FALSE",
		"h2-nio-mapped", "jdbc:h2:nioMapped:DIR/h2;WRITE_DELAY=0;DB_CLOSE_ON_EXIT=FALSE",
		"derby", "jdbc:derby:DIR/derby;create=true",
		"hsqldb", "jdbc:hsqldb:file:DIR/hsql;hsqldb.write_delay=false",
		"sqlite-jdbc", "jdbc:sqlite:DIR/app.db?synchronous=EXTRA");

	static String value(int n) {
		return n + "-" + "v".repeat(n % 200);
	}

	static Store sql(String url) throws Exception {
		Connection db = DriverManager.getConnection(url);
		try (var made = db.createStatement()) {
			made.execute("create table t (n integer primary key, v varchar(300))");
		} catch (SQLException isThere) {
			// By an earlier run.
		}
		return new Store() {
			public void put(int n) throws Exception {
				try (var s = db.prepareStatement("insert into t values (?, ?)")) {
					s.setInt(1, n);
					s.setString(2, value(n));
					s.execute();
				}
			}

			public Map<Integer, String> all() throws Exception {
				Map<Integer, String> found = new TreeMap<>();
				try (var s = db.createStatement(); ResultSet r = s.executeQuery("select n, v from t")) {
					while (r.next())
						found.put(r.getInt(1), r.getString(2));
				}
				return found;
			}
		};
	}

	/** A log by a channel, and its numbers in a mapping. */
	static Store nio(String dir) throws Exception {
		var how = new StandardOpenOption[] { StandardOpenOption.READ, StandardOpenOption.WRITE, StandardOpenOption.CREATE };
		FileChannel log = FileChannel.open(Path.of(dir, "log"), how);
		FileChannel index = FileChannel.open(Path.of(dir, "index"), how);
		MappedByteBuffer numbers = index.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20);
		return new Store() {
			public void put(int n) throws Exception {
				byte[] bytes = value(n).getBytes();
				ByteBuffer line = ByteBuffer.allocate(256).putInt(bytes.length).put(bytes).position(0);
				log.write(line, 256L * n);
				log.force(false);
				numbers.putInt(4 * n, n);
				numbers.force();
			}

			public Map<Integer, String> all() throws Exception {
				Map<Integer, String> found = new TreeMap<>();
				for (int n = 1; n < 1 << 16; n++) {
					if (numbers.getInt(4 * n) != n)
						continue;
					ByteBuffer line = ByteBuffer.allocate(256);
					log.read(line, 256L * n);
					byte[] bytes = new byte[line.position(0).getInt()];
					line.get(bytes);
					found.put(n, new String(bytes));
				}
				return found;
			}
		};
	}

	public static void main(String[] given) throws Exception {
		if (given[0].equals("list")) {
			System.out.println("java-nio");
			for (var store : new TreeMap<>(URLS).entrySet()) {
				String dashes = "";
				try {
					DriverManager.getDriver(store.getValue());
				} catch (SQLException e) {
					dashes = "- ";
				}
				System.out.println(dashes + store.getKey());
			}
			return;
		}
		String dir = given[2];
		System.setProperty("derby.system.home", dir);
		Store store = given[1].equals("java-nio") ? nio(dir) : sql(URLS.get(given[1]).replace("DIR", dir));
		Map<Integer, String> found = store.all();
		int last = 0;
		while (found.containsKey(last + 1)) {
			if (!found.get(++last).equals(value(last)))
				throw new Exception(last + " has another value: " + found.get(last));
		}
		for (int n : found.keySet())
			if (n > last + 1)
				throw new Exception(last + " is followed by " + n);
		if (given[0].equals("dump")) {
			System.out.println(last);
			return;
		}
		int most = given.length > 3 ? Integer.parseInt(given[3]) : 16383;
		for (int n = last + 1; n <= most; n++) {
			store.put(n);
			System.out.println(n);
			if (given.length <= 3)
				Thread.sleep(0, 500_000);
		}
		System.exit(0);
	}
}
