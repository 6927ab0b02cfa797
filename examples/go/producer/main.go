// Sends events: one with its order, a batch, and one to whoever asked for it.
//
// Environment: DATABASE_URL, or PG*.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/lib/pq"
)

type event struct {
	Type string `json:"type"`
	Data any    `json:"data"`
}

func main() {
	ctx := context.Background()
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL"))
	check(err)
	defer db.Close()
	_, err = db.ExecContext(ctx, `
		create table if not exists orders (
			id          bigint generated always as identity primary key,
			customer    text not null,
			total_cents integer not null
		)`)
	check(err)

	id, err := createOrder(ctx, db, "Ada", 4200)
	check(err)
	fmt.Printf("order %d is queued\n", id)
	queued, err := announcePrices(ctx, db, 7, map[string]int{"lamp": 1900, "desk": 24900, "chair": 9900})
	check(err)
	fmt.Printf("%d prices are queued\n", queued)
	endpoints, err := publishOpening(ctx, db, 3, "Zürich")
	check(err)
	fmt.Printf("published to %d endpoints\n", endpoints)
}

// In the transaction that makes the event true: both are committed, or neither.
func createOrder(ctx context.Context, db *sql.DB, customer string, totalCents int) (id int64, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() // After a commit it does nothing.
	err = tx.QueryRowContext(ctx, `insert into orders (customer, total_cents) values ($1, $2) returning id`,
		customer, totalCents).Scan(&id)
	if err != nil {
		return 0, err
	}
	payload, err := json.Marshal(event{"order.created", map[string]any{"id": id, "total_cents": totalCents}})
	if err != nil {
		return 0, err
	}
	// As a string: the driver would send []byte as bytea.
	_, err = tx.ExecContext(ctx,
		`insert into postrider.deliveries (endpoint, event_type, event_id, payload) values ($1, $2, $3, $4)`,
		"crm", "order.created", fmt.Sprintf("order-%d-created", id), string(payload))
	if err != nil {
		return 0, err
	}
	return id, tx.Commit()
}

// One statement for all. The event ids name the work, not the run: a job that runs again sends nothing twice.
func announcePrices(ctx context.Context, db *sql.DB, listNo int, prices map[string]int) (int64, error) {
	var ids, payloads []string
	for item, cents := range prices {
		payload, err := json.Marshal(event{"price.changed", map[string]any{"item": item, "cents": cents}})
		if err != nil {
			return 0, err
		}
		ids = append(ids, fmt.Sprintf("prices-%d-%s", listNo, item))
		payloads = append(payloads, string(payload))
	}
	result, err := db.ExecContext(ctx, `
		insert into postrider.deliveries (endpoint, event_type, event_id, payload)
		select 'crm', 'price.changed', event_id, payload::json
		  from unnest($1::text[], $2::text[]) as event (event_id, payload)
		on conflict (endpoint, event_id) do nothing`, pq.Array(ids), pq.Array(payloads))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// To every endpoint that asked for such events, whatever their names.
func publishOpening(ctx context.Context, db *sql.DB, shopNo int, city string) (endpoints int, err error) {
	payload, err := json.Marshal(event{"shop.opened", map[string]any{"city": city}})
	if err != nil {
		return 0, err
	}
	err = db.QueryRowContext(ctx, `select postrider.publish($1, $2, $3)`,
		"shop.opened", string(payload), fmt.Sprintf("shop-opened-%d", shopNo)).Scan(&endpoints)
	return endpoints, err
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
