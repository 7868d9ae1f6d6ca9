package network

// Traffic returns the bytes that the sandbox's interface has received and sent.
func (n *Network) Traffic() (received, sent int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gateway == nil {
		return 0, 0
	}
	s := n.gateway.Stats() // the gateway's view
	return int64(s.Out), int64(s.In)
}
