//go:build !keeper || clientonly

package programs

var packedKeeper, packedSentry, packedTools, packedS3 []byte
