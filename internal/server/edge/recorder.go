package edge

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"time"
)

// Recorder records the status and size of a response.
type Recorder struct {
	http.ResponseWriter
	Status int // 0 until the answer begins
	Bytes  int64

	mu       sync.Mutex
	hijacked net.Conn // guarded by mu; of a WebSocket
}

// Hijack implements http.Hijacker.
func (rec *Recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(rec.ResponseWriter).Hijack()
	if err == nil {
		rec.mu.Lock()
		rec.hijacked = conn
		rec.mu.Unlock()
	}
	return conn, rw, err
}

// Cut aborts reads and writes in progress.
func (rec *Recorder) Cut() {
	rec.mu.Lock()
	conn := rec.hijacked
	rec.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
		return
	}
	_ = http.NewResponseController(rec.ResponseWriter).SetWriteDeadline(time.Unix(1, 0))
}

// WriteHeader implements http.ResponseWriter.
func (rec *Recorder) WriteHeader(status int) {
	if rec.Status == 0 {
		rec.Status = status
	}
	rec.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (rec *Recorder) Write(p []byte) (int, error) {
	if rec.Status == 0 {
		rec.Status = http.StatusOK
	}
	n, err := rec.ResponseWriter.Write(p)
	rec.Bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController and the WebSocket library.
func (rec *Recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }
