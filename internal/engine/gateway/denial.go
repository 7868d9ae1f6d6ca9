package gateway

import "time"

// Denial is a refused connection or lookup, as in package engine.
type Denial struct {
	Time     time.Time
	Protocol string // "tcp", "udp", "icmp" or "dns"
	Domain   string // as looked up, or as named by the connection; "" if neither
	Address  string
	Port     int
	Reason   string // one sentence
	Count    int    // number of equal denials that this one stands for, at least 1
}
