package kubernetes

import (
	"context"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// lastWords is how long a pod may still answer after Kubernetes has ended it. It knows the reason better.
	lastWords = 5 * time.Second
	// reachTime is how long a connection to a pod may take.
	reachTime = 30 * time.Second
)

// follow ends the life of a pod when it has ended: the time in which it has connections. Without that, requests to a
// pod whose node is gone would wait for TCP to give up. The pod is known and has been seen.
func (e *Engine) follow(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.known[name]
	if h == nil || h.life != nil {
		return
	}
	life, end := context.WithCancel(context.WithoutCancel(e.running))
	h.life = life
	e.tasks.Go(func() {
		if e.pods.wait(e.running, func() (bool, error) { return e.end(name) != nil, nil }) != nil {
			return // the server ends; the pod keeps running
		}
		select {
		case <-time.After(remaining(e.pods.get(name), time.Now())):
			end()
		case <-e.running.Done():
		}
	})
}

// remaining is how long a pod that has ended may still have connections. One that is being deleted runs until its grace
// is over.
func remaining(p *corev1.Pod, now time.Time) time.Duration {
	if p != nil && p.DeletionTimestamp != nil && p.Status.Phase == corev1.PodRunning {
		return max(0, graceOver(p).Sub(now)) + lastWords
	}
	return lastWords
}

// lifeOf returns the life of a pod. That of an unknown one is over.
func (e *Engine) lifeOf(name string) context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	life := context.WithoutCancel(e.running)
	switch h := e.known[name]; {
	case h == nil:
		over, end := context.WithCancel(life)
		end()
		return over
	case h.life != nil:
		return h.life
	}
	return life
}

// tied returns conn as a connection that ends with a life.
func tied(conn net.Conn, life context.Context) net.Conn {
	return &tiedConn{Conn: conn, untie: context.AfterFunc(life, func() { _ = conn.Close() })}
}

type tiedConn struct {
	net.Conn
	untie func() bool
}

func (c *tiedConn) Close() error {
	c.untie()
	return c.Conn.Close()
}
