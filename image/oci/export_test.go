package oci

import "time"

// Hurry makes a source wait less between attempts, and for a registry that sends nothing.
func (s *Source) Hurry(pause, stall time.Duration) { s.pause, s.stall = pause, stall }
