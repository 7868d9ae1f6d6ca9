package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"testing"
	"time"
)

// TestDelay checks that data through the delay arrives unchanged, and no earlier than configured.
func TestDelay(t *testing.T) {
	t.Parallel()
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		c, err := echo.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for lines := bufio.NewScanner(c); lines.Scan(); {
			fmt.Fprintln(c, "back", lines.Text())
		}
	}()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- delay(ctx, address, echo.Addr().String(), 20*time.Millisecond) }()
	var c net.Conn
	for c == nil {
		if c, err = net.Dial("tcp", address); err != nil && pause(ctx, 10*time.Millisecond) != nil {
			t.Fatal(err)
		}
	}
	defer c.Close()
	for i := range 3 {
		begin := time.Now()
		fmt.Fprintln(c, i)
		var got int
		if _, err := fmt.Fscanf(c, "back %d\n", &got); err != nil || got != i {
			t.Errorf("%d came back as %d, %v", i, got, err)
		}
		if took := time.Since(begin); took < 20*time.Millisecond {
			t.Errorf("a round trip took %s", took)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
