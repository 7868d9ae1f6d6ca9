package credentials

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// TestMain also is the client in Go: the program of the test, under another name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "go-client" {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := goClient(ctx, "Bearer "+os.Getenv("API_TOKEN")); err != nil {
		fmt.Println(err)
	}
}

// goClient sends requests with net/http, a WebSocket, and gRPC.
func goClient(ctx context.Context, authorization string) error {
	header := http.Header{"Authorization": {authorization}}
	get := func(url string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return "", err
		}
		req.Header = header
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	for _, host := range []string{apiHost, oldHost} {
		text, err := get("https://" + host + "/v1/check")
		if err != nil {
			return err
		}
		fmt.Print(text)
	}
	text, err := get("https://" + apiHost + "/v1/large")
	if err != nil {
		return err
	}
	fmt.Println(len(text))
	c, _, err := websocket.Dial(ctx, "wss://"+apiHost+"/v1/socket", &websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		return err
	}
	defer c.CloseNow()
	if err := c.Write(ctx, websocket.MessageText, []byte("one")); err != nil {
		return err
	}
	_, b, err := c.Read(ctx)
	if err != nil {
		return err
	}
	fmt.Println(string(b))
	return callsOf(metadata.AppendToOutgoingContext(ctx, "authorization", authorization))
}

// callsOf makes calls of gRPC: one that succeeds, one whose status is in the trailers, and a stream.
func callsOf(ctx context.Context) error {
	conn, err := grpc.NewClient(apiHost+":443", grpc.WithTransportCredentials(credentials.NewTLS(nil)))
	if err != nil {
		return err
	}
	defer conn.Close()
	health := grpc_health_v1.NewHealthClient(conn)
	answer, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	fmt.Println(answer.Status)
	_, err = health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("unknown", 10)})
	fmt.Println(status.Code(err))
	stream, err := health.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	answer, err = stream.Recv()
	if err != nil {
		return err
	}
	fmt.Println(answer.Status)
	return nil
}
