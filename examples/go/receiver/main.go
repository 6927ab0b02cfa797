// Receives webhooks: verifies each request, does its work once, and answers.
//
// Environment: WEBHOOK_SECRET (whsec_...), PORT (9000), DATABASE_URL or PG*.
package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	_ "github.com/lib/pq"
)

const (
	largestBody = 1 << 20
	tolerance   = 5 * time.Minute
)

type receiver struct {
	key []byte
	db  *sql.DB
}

func main() {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("WEBHOOK_SECRET"), "whsec_"))
	if err != nil || len(key) == 0 {
		log.Fatal("WEBHOOK_SECRET must be whsec_ and base64")
	}
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = db.Exec(`
		create table if not exists seen_webhooks (
			webhook_id  text primary key,
			received_at timestamptz not null default now() -- older than your longest retry: can go
		);
		create table if not exists received_events (event_type text not null, body text not null)`)
	if err != nil {
		log.Fatal(err)
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "9000"
	}
	server := http.Server{
		Addr:        "127.0.0.1:" + port,
		Handler:     receiver{key, db},
		ReadTimeout: 15 * time.Second,
	}
	log.Fatal(server.ListenAndServe())
}

// 5xx: it comes again; 4xx: it does not.
func (r receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, largestBody))
	if err != nil {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	if !r.verified(request.Header, body) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	var event struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(body, &event) != nil || event.Type == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if err := r.once(request.Context(), request.Header.Get("webhook-id"), event.Type, body); err != nil {
		log.Print(err)
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (r receiver) verified(header http.Header, body []byte) bool {
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if id == "" || err != nil {
		return false
	}
	// An old request may be somebody's recording of it.
	age := time.Since(time.Unix(seconds, 0))
	if age > tolerance || age < -tolerance {
		return false
	}
	// Over the very bytes: a body that was parsed and written again has others.
	mac := hmac.New(sha256.New, r.key)
	fmt.Fprintf(mac, "%s.%s.", id, timestamp)
	mac.Write(body)
	expected := []byte("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	// There are several while a secret is being changed; one that fits is enough.
	for _, one := range strings.Split(header.Get("webhook-signature"), " ") {
		if hmac.Equal([]byte(one), expected) {
			return true
		}
	}
	return false
}

// The id is noted in the transaction that does the work: both are committed, or neither.
func (r receiver) once(ctx context.Context, id, eventType string, body []byte) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // After a commit it does nothing.
	result, err := tx.ExecContext(ctx, `insert into seen_webhooks (webhook_id) values ($1) on conflict do nothing`, id)
	if err != nil {
		return err
	}
	if added, err := result.RowsAffected(); err != nil {
		return err
	} else if added == 1 {
		if err := work(ctx, tx, eventType, body); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Yours. What takes longer than some seconds should only be queued here.
func work(ctx context.Context, tx *sql.Tx, eventType string, body []byte) error {
	_, err := tx.ExecContext(ctx, `insert into received_events (event_type, body) values ($1, $2)`,
		eventType, string(body))
	return err
}
