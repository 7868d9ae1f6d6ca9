#!/bin/sh
set -e
echo "installing node"
