package gateway

import "time"

// Denial is a connection or a look-up that was refused, as in package engine.
type Denial struct {
	Time     time.Time
	Protocol string // "tcp", "udp", "icmp" or "dns"
	Domain   string // as looked up, or as the connection names it; "" if nothing named it
	Address  string
	Port     int
	Reason   string // one sentence
	Count    int    // of equal ones that this one stands for, at least 1
}
